// Package slurmtest is a fake of sbatch, squeue, sacct, scancel, scontrol,
// sacctmgr and sshare for tests: programs that behave like Slurm 22.05 over a state that
// the test drives, with faults that a real cluster shows only rarely. It promises
// what Conform checks, and Conform is run on a real cluster too. It refuses
// options that it does not know, and it runs no script: the test says when tasks
// start and how they end.
//
// The commands are the test binary itself under other names: a TestMain asks
// Command first, and exits with its status if it was one.
package slurmtest
