# Every target sets up .venv by itself; a fresh machine needs Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help compare test lint types contract unit gpu constraints clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

compare: .venv/installed  ## the main job: is gradient regularization worth it on 100 handwritten digits?
	$(BIN)/gradreg compare

test: lint types contract unit  ## all that must pass: style, types, import contract, tests and documentation examples

lint: .venv/installed  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed  ## mypy, strict
	$(BIN)/mypy

contract: .venv/installed  ## a layer imports only from those below it
	$(BIN)/lint-imports

unit: .venv/installed  ## tests and the examples in the documentation
	$(BIN)/python -m pytest -q -n 2

gpu: .venv/installed  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -q -m gpu

constraints:  ## pin anew what pip chooses now for the development set
	rm -rf .venv && $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet torch==2.13.0 -e '.[dev]'
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt
	touch .venv/installed

clean:  ## remove the environment and caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
