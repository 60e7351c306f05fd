#!/usr/bin/env bash
# Prints the figures of the daemon under a night of 30,000 runs, one per line: name
# value target. Slurm is a replayed fake: a real controller takes longer for 30,000
# pending tasks than everything that is measured here. SBENCH_SCALE_SETTLE (4m) is
# how long the daemon waits before its idle figures are taken.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
figures='^[a-z0-9_]+ [0-9.e+-]+ (-|[<>]=)'
run() {
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
  fi
  grep -E "$figures" "$log"
}
run go test -tags scale -count=1 -timeout 40m -v -run '^TestScale$' ./tests/scale
run go test -run '^$' -bench '^BenchmarkTick$' -benchtime 2x -timeout 30m ./internal/collect
run go test -run '^$' -bench '^BenchmarkIngest$' -benchtime 6x -timeout 30m ./internal/store
