// Package sbatch holds the shell that runs inside jobs.
package sbatch

import _ "embed" // the file below

// Task is what every task of a batch executes.
//
//go:embed task.sh
var Task []byte
