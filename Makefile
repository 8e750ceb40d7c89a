# make demo    set everything up and graft the sample pair
# make setup   what all of the following need
# make test    set everything up and run all tests, the real runtime included
# make quick   the tests that take seconds
# make lint    formatting, lint, types
# make bench   the speed and memory table of docs/performance.md

VENV ?= .venv
BIN := $(VENV)/bin
BASE_PYTHON := $(firstword $(foreach name,$(PYTHON) python3.11 python3 python3.12 python3.13,\
  $(shell $(name) -c 'import sys; assert sys.version_info >= (3, 11); print("$(name)")' 2>/dev/null)))
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= auto
PYTEST_ARGS ?=
# A worker takes whole files, the longest ones first, see tests/conftest.py.
SHARES := --dist loadfile --no-loadscope-reorder
DEMO := build/demo

# One thread per worker: the workers fill the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: demo setup test quick lint bench clean

demo: $(VENV)/.runtime
	@rm -rf $(DEMO) && mkdir -p $(dir $(DEMO))
	$(BIN)/ovgraft apply --target samples/pair/target --draft samples/pair/draft --preset dflash -o $(DEMO)
	$(BIN)/ovgraft verify samples/pair/target $(DEMO)/target
	$(BIN)/ovgraft inspect $(DEMO)/target
	@echo "the grafted pair lies in $(DEMO)/target and $(DEMO)/draft"

setup: $(VENV)/.dev

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) $(SHARES) --max-worker-restart 0 $(PYTEST_ARGS)

quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) $(SHARES) -m "not slow" $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks --write docs/performance.md

$(VENV)/bin/python:
	$(if $(BASE_PYTHON),,$(error Python 3.11 or newer was not found; set PYTHON=/path/to/python3.11))
	$(BASE_PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(VENV)/bin/python
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[genai,compress,dev]'
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf build dist .venv *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
