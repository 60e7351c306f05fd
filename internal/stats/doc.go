// Package stats holds the estimators, intervals and tests that the numbers of a
// benchmark need. It promises integer ranks, sample (N-1) deviations and known
// answers (tests/vectors/stats); it refuses an interval where there are too few
// values for one, and says so in the return value instead of with a number. The
// package is pure.
package stats
