#!/usr/bin/env bash
# Prints the figures of docs/performance.md, one per line: name value target.
# Each ratio is of two sides measured in one run.
set -euo pipefail
cd "$(dirname "$0")/.."
benchmarks=(
  './internal/store BenchmarkCreateSweep'
  './internal/store BenchmarkIngest 6x'
  './internal/collect BenchmarkTick'
  './internal/runner BenchmarkRunOverhead'
  './internal/runner/stage BenchmarkDigest'
)
for b in "${benchmarks[@]}"; do
  read -r package name rounds <<<"$b"
  out=$(go test -run '^$' -bench "^$name\$" -benchtime "${rounds:-3x}" "$package") || { printf '%s\n' "$out" >&2; exit 1; }
  grep -E '^[a-z0-9_]+ [0-9.]+ [<>]=' <<<"$out"
done
# Go's own lines: seconds for each operation.
for b in './internal/cli BenchmarkSettings settings_6000_seconds <=1' './internal/web BenchmarkSubmit submit_6000_seconds <=5'; do
  read -r package name figure target <<<"$b"
  out=$(go test -run '^$' -bench "^$name\$" -benchtime 3x "$package") || { printf '%s\n' "$out" >&2; exit 1; }
  awk -v figure="$figure" -v target="$target" '/ns\/op/ {for (i = 1; i < NF; i++) if ($(i + 1) == "ns/op") printf "%s %.3f %s\n", figure, $i / 1e9, target}' <<<"$out"
done
