# One verb for each thing that a person does here. `make` alone lists them.
# Needs Python 3.11 or newer, git and make; everything else is installed into .venv from requirements.lock.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test check fix bench lock clean

help:  ## list the verbs
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## install everything into .venv

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Error: pgtide needs Python 3.11 or newer; try: make PYTHON=/path/to/python3.11 setup"; exit 1; }
	@echo "setting up .venv (a minute or two, once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^\(uv==[^ ;]*\).*/\1/p' requirements.lock)"
	@UV_LINK_MODE=copy $(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)  ## copy a live Postgres into a Delta lake, and verify it
	@$(BIN)/pgtide demo

test: $(READY)  ## run the whole test suite
	@$(BIN)/python -m pytest

check: $(READY)  ## lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

fix: $(READY)  ## format and mend what the linter can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY)  ## measure: one table, and JSON in bench/results
	@$(BIN)/python -m bench

lock: $(READY)  ## choose versions anew and write requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --extra dev --upgrade pyproject.toml -o requirements.lock

clean:  ## remove what the verbs above made
	@rm -rf $(VENV) demo-data spark-warehouse .mypy_cache .ruff_cache .pytest_cache bench/results
