// Package sim is a simulated inference engine: an OpenAI-compatible server
// whose batching runs in real time by a stated cost model and which logs the
// true time of everything it emits. It lets a measurement be compared with a
// known truth, and rehearsals run without a GPU.
//
// It promises that the same seed gives the same texts, lengths, noise and
// faults for the same order of requests, and that it never paces a client: what
// is due is written when it is due, and what does not fit a socket is queued.
// It refuses to be an engine: its texts mean nothing.
package sim
