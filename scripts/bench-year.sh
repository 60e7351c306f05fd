#!/usr/bin/env bash
# Generates a synthetic year (11 million attempts, 2.2 million aggregates) in a
# PostgreSQL of its own and prints what its rows take and how long the product's
# queries take on it, one per line: name value target. SBENCH_YEAR_FACTOR scales the
# year (0.02 is a week); TMPDIR says where the database lies: the whole year takes
# 75 GB. SBENCH_YEAR_DSN names an empty database of one's own instead, in which the
# year stays: a further run with it only measures.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! go test -tags year -count=1 -timeout 12h -v -run '^TestYear$' ./internal/store 2>&1 |
  tee "$log" | { grep --line-buffered '^# ' >&2 || true; }; then
  cat "$log" >&2
  exit 1
fi
grep -E '^[a-z0-9_]+ [0-9.e+-]+ (-|[<>]=)' "$log"
