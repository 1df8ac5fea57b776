# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := qp,experiments,estimators,fast,trainers,docs,dev

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test lint format clean docs docs-serve pictures notebooks

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed  ## install the package and every extra that the tests use into .venv

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

demo: setup  ## train on digits beside SGD and Adam, verify live steps, write out/demo.png
	$(BIN)/python -m experiments.demo

test: setup  ## run all tests, docs and README included
	$(BIN)/python -m pytest -n auto -q

docs: setup  ## build the site into out/site; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: setup  ## serve the site on http://localhost:8000, and rebuild it at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

pictures: setup  ## draw the pictures of the docs again (real training: minutes)
	for drawing in docs/pictures/[a-z]*.py; do PYTHONPATH=. $(BIN)/python $$drawing || exit 1; done

notebooks: setup  ## run the notebooks of the docs again and keep what they print
	$(BIN)/python docs/notebooks/execute.py

bench: setup  ## every benchmark of the solvers into out/bench (half an hour; quick: make bench BENCH=--quick)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks $(BENCH)

lint: setup  ## ruff and mypy (strict on proxsvm/)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .hypothesis
