# Everything here needs only make and Python 3.11 to 3.13 with pip and venv; `make help` lists the commands.

PYTHON ?= python3
VENV ?= .venv
# The torch requirement, with pip options if wanted: TORCH="torch==2.13.0 --index-url INDEX"
TORCH ?= torch==2.13.0
# Flags for the program that a target runs: ARGS="--port 9000", ARGS="tests/prefix -k merge"
ARGS ?=
# Processes that `make test` spreads test files over, each limited to one thread
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# a stamp for each value of TORCH, so that changing it reinstalls
TORCH_STAMP := $(VENV)/.torch-$(shell printf '%s' '$(TORCH)' | cksum | cut -d ' ' -f 1)
SERVER_STAMP := $(VENV)/.server
DEV_STAMP := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help serve setup test lint format bench clean distclean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

serve: $(SERVER_STAMP) ## Install what is missing and start the server; ARGS are flags of `holdover serve`
	@exec $(BIN)/holdover serve $(ARGS)

setup: $(DEV_STAMP) ## Install the development environment

test: $(DEV_STAMP) ## Run every test that needs no GPU; ARGS are arguments of pytest
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" -n $(JOBS) --dist loadfile $(ARGS)

lint: $(DEV_STAMP) ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_STAMP) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(DEV_STAMP) ## Run the benchmarks; ARGS choose among them
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## Remove caches and build outputs
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -path './$(VENV)' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Remove the environment too
	rm -rf '$(VENV)'

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "Holdover needs Python 3.11 to 3.13, and '$(PYTHON)' is not; try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv '$(VENV)'

# torch goes first and alone: which build is right depends on the machine, and what follows accepts the one it finds
$(TORCH_STAMP): | $(BIN)/pip
	$(PIP) install $(TORCH)
	@rm -f $(VENV)/.torch-* && touch $@

$(SERVER_STAMP): pyproject.toml constraints.txt $(TORCH_STAMP)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[server,structured]'
	@touch $@

# `dev` contains both
$(DEV_STAMP): pyproject.toml constraints.txt $(TORCH_STAMP)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(SERVER_STAMP) $@
