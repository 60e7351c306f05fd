// Package workload turns the workload of a setting and the number of a repeat
// into a plan: when each request is due, how long its prompt and answer are, and
// from which stream its text comes. It promises that the same input gives the
// same plan, bit for bit, on every machine and for any number of workers, and
// that the plan's hash says so. It refuses what it cannot plan exactly. The
// package is pure: files come in as bytes.
package workload
