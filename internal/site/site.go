// Package site holds what is true of one Slurm cluster: partitions, the mapping
// of hardware ids to GRES and constraints, paths, limits and rates, read
// strictly from site-configs/*.yaml. The package is pure.
package site
