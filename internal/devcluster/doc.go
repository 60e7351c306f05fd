// Package devcluster brings a real Slurm cluster, PostgreSQL and sbenchd up
// inside one directory and takes them down again. It promises that Up returns
// only when every node is idle and every server answers, that Down leaves no
// process, socket or lock behind, and that several clusters live side by side.
// It refuses to manage anything outside its directory: the GPUs are links to
// /dev/null and the figures measured on such a cluster are emulated.
package devcluster
