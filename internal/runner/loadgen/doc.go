// Package loadgen sends each request of a plan when it is due, whether or not
// earlier ones were answered, and records what came back and when. It promises
// that every request offered ends in exactly one outcome class, that nothing is
// decoded while the load runs, and that what the client itself did to the
// timing is recorded. It refuses to start what the machine's descriptors or
// ports cannot carry.
package loadgen
