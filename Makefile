# Every target sets up what it needs by itself: nothing but Python 3.11, make and git has to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# A Python that is named has an environment of its own: make test PYTHON=python3.13
VENV := .venv$(if $(filter command environment,$(origin PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
PYTHONS ?=
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
RLINF ?=
TABLE ?=
TESTS ?=
COMPARE ?=
SUITE := -n 4 --dist loadgroup --max-worker-restart 0
# What runs real engines has an environment of its own: they bring gigabytes, and versions of their own.
ENGINES := $(VENV)-engines

# Hundreds of processes start in a run: compiled once, each of them starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test system pythons soak check types docs bench engines engine-tests gpu interrupt fuzz simulate rlinf clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

demo: $(VENV)/.ready ## Train across components on simulated accelerators (EXAMPLE=cartpole|grpo MODE=collocated|disaggregated|hybrid, of grpo also lora, elastic)
	$(BIN)/python examples/$(EXAMPLE)/main.py --config-name $(MODE)

test: $(VENV)/.ready ## Run the test suite, but for the tests of whole installations
	$(BIN)/python -m pytest $(SUITE) -m "not system"

system: $(VENV)/.ready ## Run the tests of whole installations: Rays of several hosts, programs of the pages and of RLinf's, a wheel, a browser
	$(BIN)/python -m pytest $(SUITE) -m system

pythons: ## Run both suites on every Python that is promised and found, and say which were tried (PYTHONS="/path/to/python3.13 ...")
	@$(PYTHON) tests/support/pythons.py $(PYTHONS)

soak: $(VENV)/.ready ## Run all tests with many times its random examples, seeds and rounds (EFFORT=10)
	EFFORT=$(EFFORT) $(BIN)/python -m pytest -n 3 --dist loadgroup --max-worker-restart 0 --timeout 0

check: $(VENV)/.ready ## Lint, format, types, import layers, budgets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/support/budgets.py

$(VENV)/.types: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[types]'
	@touch $@

types: $(VENV)/.types ## Check a program of a user's with mypy and pyright (which the test suite skips where it is not installed)
	$(BIN)/python -m pytest tests/typing

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## Build the documentation, API reference included, as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/.ready ## Measure against what one would use instead (BENCH=--quick: roughly)
	@for name in $(BENCHMARKS); do echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py $(BENCH) || exit 1; echo; done

$(ENGINES)/.ready: pyproject.toml constraints.txt tests/support/install_vllm.py
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --constraint constraints.txt packaging 'torch==2.13.0'
	$(ENGINES)/bin/python tests/support/install_vllm.py
	$(ENGINES)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

engines: engine-tests ## Install vLLM (1.5 GB) into an environment of its own; run the tests of engines, and GRPO with it (MODE=...)
	$(ENGINES)/bin/python examples/grpo/main.py --config-name $(MODE) model=transformers training.engine=vllm

engine-tests: $(ENGINES)/.ready
	$(ENGINES)/bin/python -m pytest tests/engines tests/examples/test_grpo_parts.py

gpu: $(VENV)/.ready ## Try and measure all that needs an accelerator, in ten minutes; RESULTS=outputs/gpu has what came of it (KILLS=10)
	PYTHON=$(BIN)/python KILLS=$(KILLS) sh benchmarks/on_a_device.sh $(RESULTS)

interrupt: $(VENV)/.ready ## Interrupt every blocking call N times, at random moments (N=5000)
	INTERRUPTIONS=$(N) $(BIN)/python -m pytest -q tests/interruption

fuzz: $(VENV)/.ready ## Fuzz placements and whole configs (SECONDS=600)
	$(BIN)/python tests/fuzz/fuzz_configs.py $(SECONDS)

simulate: $(VENV)/.ready ## Tell stories of a simulated cluster, with cuts, pauses and deaths (SEEDS=10000)
	$(BIN)/python -m simulator --seeds $(SEEDS)

rlinf: $(VENV)/.ready ## Run RLinf's own tests of its scheduler, and import all its modules, on this one (RLINF=/path/to/checkout TABLE=results.md)
	@$(BIN)/python tests/face/rlinf_checkout.py $(RLINF) $(if $(TABLE),--table $(TABLE)) $(if $(COMPARE),--compare) --tests "$(TESTS)"

clean: ## Remove the environment and every cache
	rm -rf .venv .venv-* .import_linter_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis outputs site
