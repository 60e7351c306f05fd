// Package sbatch holds the shell that runs inside jobs.
package sbatch

import _ "embed" // the files below

// Task is what every task of a batch executes.
//
//go:embed task.sh
var Task []byte

// SiteCheck is what a check of a site runs on a compute node.
//
//go:embed site-check.sh
var SiteCheck []byte
