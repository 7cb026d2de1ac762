# Every target works on a fresh machine that has nothing but Python >= 3.11 with pip and venv:
# it makes its own virtual environment in .venv and installs what it needs, once per change of pyproject.toml.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check

# The first interpreter that runs and is recent enough; `make test PYTHON=/path/to/python` overrides the search.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)

# Arguments handed on: make test TEST="-k fisher", make bench BENCH="--case mlp".
TEST ?=
BENCH ?=
WORKERS ?= 2

.PHONY: help setup test lint format typecheck demo bench docs serve-docs figures clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(PY):
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or newer was found. Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; fi
	@# Some systems ship venv without ensurepip: then the pip that is there fills the new environment.
	"$(PYTHON)" -m venv "$(VENV)" || { "$(PYTHON)" -m venv --clear --without-pip "$(VENV)" && \
		"$(PYTHON)" -m pip --python "$(PY)" install --quiet pip; }

# Dependency groups need pip 25.1. One stamp per set of requirements, so that the demo installs little.
$(VENV)/.pip: | $(PY)
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.pip
	$(PIP) install --quiet --editable ".[plot]"
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.pip
	$(PIP) install --quiet --editable ".[plot,weather]" --group dev
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.pip
	$(PIP) install --quiet --editable ".[plot]" --group bench
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.pip
	$(PIP) install --quiet --editable ".[docs,plot,weather]"
	@touch $@

setup: $(VENV)/.dev ## make .venv and install everything that development needs

test: $(VENV)/.dev ## run the whole test suite (TEST= adds pytest arguments)
	$(PY) -m pytest -n $(WORKERS) --dist loadfile $(TEST)

lint: $(VENV)/.dev ## check style, formatting and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/.dev ## rewrite the files in the project's style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

typecheck: $(VENV)/.dev ## check types alone
	$(PY) -m mypy

demo: $(VENV)/.demo ## train a small network, print a table, draw out/demo.png
	$(PY) examples/demo.py

bench: $(VENV)/.bench ## measure time and memory as ratios to one plain gradient (BENCH= adds arguments)
	$(PY) -m benchmarks $(BENCH)

docs: $(VENV)/.docs ## build the documentation into site/, running the code in its pages
	$(PY) -m mkdocs build --strict

serve-docs: $(VENV)/.docs ## show the documentation at a local address while writing it
	$(PY) -m mkdocs serve

figures: $(VENV)/.demo ## draw the paper's figures and their numbers into out/
	$(PY) -m examples.figures

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) site build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
