// Package metrics turns the request rows of a window into the numbers that
// METRICS v1 defines. It promises that every metric of Table is either a finite
// number or nil with a reason, and that the same rows give the same numbers; it
// refuses to guess: what is undefined is null and never 0. The package is pure.
package metrics
