# Every target sets up what it needs by itself: nothing but Python 3.11, make and git has to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
MODE ?= disaggregated
SECONDS ?= 60
BENCHMARKS := placement calls comm channel growth
BENCH ?=

.PHONY: help demo test check bench fuzz clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

demo: .venv/.ready ## Train CartPole across components on simulated accelerators (MODE=collocated|disaggregated|hybrid)
	$(BIN)/python examples/cartpole/main.py --config-name $(MODE)

test: .venv/.ready ## Run the test suite
	$(BIN)/python -m pytest

check: .venv/.ready ## Lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.ready ## Measure against what one would use instead (BENCH=--quick: roughly)
	@for name in $(BENCHMARKS); do echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py $(BENCH) || exit 1; echo; done

fuzz: .venv/.ready ## Fuzz placements and whole configs (SECONDS=600)
	$(BIN)/python tests/fuzz/fuzz_configs.py $(SECONDS)

clean: ## Remove the environment and every cache
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis outputs
