# Every target sets up what it needs by itself: nothing but Python 3.11, make and git has to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
EXAMPLE ?= cartpole
MODE ?= disaggregated
SECONDS ?= 60
SEEDS ?= 10000
BENCHMARKS := placement balance calls comm channel growth
BENCH ?=
N ?= 5000
KILLS ?= 10
RESULTS ?= outputs/gpu
EFFORT ?= 10

# Hundreds of processes start in a run: compiled once, each of them starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test soak check types docs bench gpu interrupt fuzz simulate clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

demo: .venv/.ready ## Train across components on simulated accelerators (EXAMPLE=cartpole|grpo MODE=collocated|disaggregated|hybrid)
	$(BIN)/python examples/$(EXAMPLE)/main.py --config-name $(MODE)

test: .venv/.ready ## Run the test suite
	$(BIN)/python -m pytest -n 4 --dist loadgroup --max-worker-restart 0

soak: .venv/.ready ## Run the test suite with many times its random examples, seeds and rounds (EFFORT=10)
	EFFORT=$(EFFORT) $(BIN)/python -m pytest -n 3 --dist loadgroup --max-worker-restart 0 --timeout 0

check: .venv/.ready ## Lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/.types: .venv/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[types]'
	@touch $@

types: .venv/.types ## Check a program of a user's with mypy and pyright (which the test suite skips where it is not installed)
	$(BIN)/python -m pytest tests/typing

.venv/.docs: .venv/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: .venv/.docs ## Build the documentation, API reference included, as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: .venv/.ready ## Measure against what one would use instead (BENCH=--quick: roughly)
	@for name in $(BENCHMARKS); do echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py $(BENCH) || exit 1; echo; done

gpu: .venv/.ready ## Try and measure all that needs an accelerator, in ten minutes; RESULTS=outputs/gpu has what came of it (KILLS=10)
	PYTHON=$(BIN)/python KILLS=$(KILLS) sh benchmarks/on_a_device.sh $(RESULTS)

interrupt: .venv/.ready ## Interrupt every blocking call N times, at random moments (N=5000)
	INTERRUPTIONS=$(N) $(BIN)/python -m pytest -q tests/interruption

fuzz: .venv/.ready ## Fuzz placements and whole configs (SECONDS=600)
	$(BIN)/python tests/fuzz/fuzz_configs.py $(SECONDS)

simulate: .venv/.ready ## Tell stories of a simulated cluster, with cuts, pauses and deaths (SEEDS=10000)
	$(BIN)/python -m rlinf.testing.simulation --seeds $(SEEDS)

clean: ## Remove the environment and every cache
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis outputs site
