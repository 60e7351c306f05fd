#!/usr/bin/env bash
# Prints the figures of the load generator, one per line: name value target. Each
# is measured beside a bare program that does the same and nothing else, in the
# same run; engine and client have a core each. Needs bin/ (make build).
set -euo pipefail
cd "$(dirname "$0")/.."
# The peer that is run beside ours, at a fixed version; without it its figures are left out.
if [[ ! -x .cache/bin/vegeta ]]; then
  GOBIN="$PWD/.cache/bin" go install github.com/tsenart/vegeta/v12@v12.13.0 || true
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
go test -tags load -count=1 -timeout 30m -v "$@" ./tests/load >"$log" 2>&1 || status=$?
grep -E '^[a-z0-9_.]+ [0-9.e+-]+ (-|[<>]=)' "$log" || true
grep -E 'missed:|^--- FAIL|^panic' "$log" >&2 || true
if ((status != 0)); then
  cat "$log" >&2
fi
exit "$status"
