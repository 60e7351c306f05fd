// Package slurm calls sbatch, squeue, sacct, scancel and scontrol and turns what
// they print into typed values.
//
// It promises that every call ends within its deadline, that no variable of the
// caller's environment changes what a command does or prints, that columns are
// asked for by name and never found by position on the screen, and that not
// knowing is never mistaken for knowing that something is gone. It refuses rows
// that it does not understand instead of guessing, and it never retries: whether
// a call may be repeated is for its caller to decide.
package slurm
