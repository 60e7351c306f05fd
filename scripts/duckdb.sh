#!/usr/bin/env bash
# Fetches DuckDB's Node binding into .cache and lets it read a compacted dataset in
# place, by the queries of docs/dataset.md. Skips, with a word, where node or npm is
# missing or the package cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
package='@duckdb/node-api@1.5.6-r.1'
folder=$PWD/.cache/duckdb
for tool in node npm; do
  if ! command -v "$tool" >/dev/null; then
    echo "SKIPPED: DuckDB's binding needs $tool, which is not installed" >&2
    exit 0
  fi
done
if ! npm install --prefix "$folder" --no-audit --no-fund --no-save --loglevel=error "$package" >&2; then
  echo "SKIPPED: npm cannot fetch $package" >&2
  exit 0
fi
SBENCH_DUCKDB=$folder exec go test -count=1 -v -run '^TestDataset_DuckDB$' ./internal/collect
