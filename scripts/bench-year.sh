#!/usr/bin/env bash
# Generates a synthetic year (11 million attempts, 2.2 million aggregates) in a
# PostgreSQL of its own and prints what its rows take and how long the product's
# queries take on it, one per line: name value target. SBENCH_YEAR_FACTOR scales the
# year (0.02 is a week); TMPDIR says where the database lies.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! go test -tags year -count=1 -timeout 6h -v -run '^TestYear$' ./internal/store >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
grep -E 'a night takes|nights in' "$log" | sed 's/^ *year_test.go:[0-9]*: /# /' >&2
grep -E '^[a-z0-9_]+ [0-9.e+-]+ (-|[<>]=)' "$log"
