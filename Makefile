# sbench: `make` prints what there is.

SHELL       := /bin/bash
GO          ?= go
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS     := -s -w -X sbench/internal/version.stamp=$(VERSION)
BIN         := bin
ENGINE      := .cache/engine
GOSTATIC    := CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)'
LINT        := $(GO) tool -modfile=tools/go.mod
TESTFLAGS   ?=
FUZZTIME    ?= 10s
SHELLFILES   = $(shell git ls-files '*.sh' '.ci/run' 'tests/engine/apptainer-standin')

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what is missing (Slurm, MUNGE, MariaDB, …) from Debian's packages
	@scripts/install-deps.sh

.PHONY: build
build: ## build all programs into bin/
	$(GOSTATIC) -o $(BIN)/ ./cmd/sbench ./cmd/sbenchd ./cmd/sbench-runner ./cmd/sbench-sim
	GOARCH=arm64 $(GOSTATIC) -o $(BIN)/sbench-runner-arm64 ./cmd/sbench-runner
	@scripts/build-gpu.sh $(BIN) '$(LDFLAGS)'

PREFIX  ?= /usr/local
DESTDIR ?=

.PHONY: install
install: ## install what `make build` made under PREFIX: programs, manual pages, completion, the systemd unit
	@test -x $(BIN)/sbenchd || { echo "bin/ is empty: make build first" >&2; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/lib/systemd/system
	for p in sbench sbenchd sbench-runner sbench-runner-arm64 sbench-gpu sbench-sim; do install -m 755 $(BIN)/$$p $(DESTDIR)$(PREFIX)/bin/ || exit 1; done
	if [ -x $(BIN)/sbench-gpu-arm64 ]; then install -m 755 $(BIN)/sbench-gpu-arm64 $(DESTDIR)$(PREFIX)/bin/; fi
	$(BIN)/sbench man $(DESTDIR)$(PREFIX)/share/man/man1
	$(BIN)/sbench completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/sbench
	sed 's|@PREFIX@|$(PREFIX)|' scripts/sbenchd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/sbenchd.service

.PHONY: engine
engine: ## build the demo's inference engine, its model and its container image
	@tests/engine/build.sh $(ENGINE)

.PHONY: demo
demo: deps build engine ## run a real sweep on a private Slurm cluster, print its results, tear down
	@scripts/demo.sh

.PHONY: test
test: deps build engine ## unit, command and end-to-end tests (the private cluster included)
	$(GO) test -count=1 -p 3 -timeout 40m $(TESTFLAGS) $$($(GO) list ./... | grep -v -E "/tests/(docs|e2e|faults)$$")
	cd tests/engine && CGO_ENABLED=0 $(GO) test -count=1 ./...
	$(GO) test -count=1 -timeout 40m $(TESTFLAGS) -p 2 ./tests/e2e ./tests/faults ./tests/docs

.PHONY: race
race: deps build engine ## the tests under the race detector, without the end-to-end suite
	$(GO) test -race -short -count=1 -p 2 -timeout 20m ./internal/...

.PHONY: e2e
e2e: deps build engine ## the end-to-end suite alone, with its log
	$(GO) test -count=1 -v -timeout 40m ./tests/e2e/...

.PHONY: kill-matrix
kill-matrix: deps ## kill the daemon, Slurm and PostgreSQL under 1,000 runs and count what is lost
	SBENCH_KILL_RUNS=$${SBENCH_KILL_RUNS:-1000} $(GO) test -count=1 -v -timeout 180m -run KillMatrix ./tests/faults

.PHONY: lint
lint: ## golangci-lint (with gofumpt) and shellcheck
	$(LINT) golangci-lint run ./...
	shellcheck -x $(SHELLFILES)

.PHONY: fmt
fmt: ## gofumpt every Go file
	$(LINT) gofumpt -w cmd internal tests/e2e templates sbatch schema

.PHONY: verify
verify: ## generated files, schemas, columns and docs agree with the axes and metrics tables
	$(GO) test -count=1 -run 'Verify|Golden|Schema|Columns|Architecture|Layers' ./internal/... ./schema/...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME each
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: deps build ## the figures of docs/performance.md, one per line: name value target
	@scripts/bench.sh

.PHONY: bench-scale
bench-scale: deps ## the daemon's figures under a night of 30,000 runs
	@scripts/bench-scale.sh

.PHONY: bench-year
bench-year: deps ## the product's queries on a synthetic year of results
	@scripts/bench-year.sh

.PHONY: duckdb
duckdb: deps ## DuckDB reads the compacted dataset in place, by the queries of docs/dataset.md
	@scripts/duckdb.sh

.PHONY: bench-load
bench-load: build ## the figures of the load generator, beside bare programs in the same run
	@scripts/bench-load.sh

.PHONY: stats-sim
stats-sim: ## what the statistics promise, simulated: name value target
	@$(GO) run ./tests/stats

.PHONY: drift
drift: ## every injected difference must be refused, every harmless one allowed
	@set -o pipefail; $(GO) test -count=1 -v -run '^TestDriftMatrix$$' ./internal/runner | \
	  awk '/^refused / {last = $$0; next} /^(ok|PASS|=== )/ {next} {print} END {print last}'

.PHONY: soak
soak: deps build engine ## long drills
	$(GO) test -count=1 -tags soak -timeout 120m -v ./tests/...

.PHONY: check
check: lint verify test ## what CI runs, and the linters

.PHONY: clean
clean: ## remove build products and the demo's folder
	@if [ -x $(BIN)/sbench ] && [ -d .demo ]; then $(BIN)/sbench dev down --dir .demo || true; fi
	rm -rf $(BIN) .demo .cache dist
