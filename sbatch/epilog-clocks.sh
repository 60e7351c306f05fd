#!/bin/bash
# Resets the clocks of the GPUs of the job that ends, whatever ended it: for
# slurm.conf's Epilog, as root, on sites whose engine.clocks.method is helper.
#
#   epilog-clocks.sh [SBENCH_GPU]
#
# A runner resets what it locked on every way out but SIGKILL. SBENCH_GPU is the
# program, /usr/local/sbin/sbench-gpu by default. A job without GPUs is nothing to
# do. The exit status is the program's: where a clock cannot be reset, Slurm drains
# the node.
set -u

gpus=${SLURM_JOB_GPUS-}
[ -n "$gpus" ] || exit 0
case $gpus in
*[!0-9,]*)
  echo "epilog-clocks: SLURM_JOB_GPUS $gpus is not a list of numbers" >&2
  exit 2
  ;;
esac
exec "${1:-/usr/local/sbin/sbench-gpu}" reset-clocks --gpus "$gpus"
