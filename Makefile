# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := qp,grid,maxflow,estimators,fast,experiments,peers,trainers,docs,dev

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format clean bench bench-quick bench-compare docs docs-serve links pictures notebooks dist

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed  ## install the package and every extra that the tests use into .venv

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

demo: setup  ## accuracy against η, a structured task, a verified step: out/demo.png, about a minute
	$(BIN)/python -m experiments.demo

test: setup  ## run all tests, docs and README included
	$(BIN)/python -m pytest -n auto --dist worksteal -q

docs: setup  ## build the site into out/site, which opens from that folder, too; every warning is an error
	$(BIN)/python -m zensical build --strict --clean

docs-serve: setup  ## serve the site on http://localhost:8000, and rebuild it at every change
	$(BIN)/python -m zensical serve

links: setup  ## list every external link in docs/links.md
	$(BIN)/python docs/links.py

pictures: setup  ## draw the pictures of the docs again (real training: minutes)
	for drawing in docs/pictures/[a-z]*.py; do PYTHONPATH=. $(BIN)/python $$drawing || exit 1; done

notebooks: setup  ## run the notebooks of the docs again and keep what they print
	$(BIN)/python docs/notebooks/execute.py

bench: setup  ## every benchmark into out/bench; some: make bench BENCH="step criterion"
	OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks $(BENCH)

bench-quick: setup  ## a small variant of what a step costs, under two minutes
	OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks step criterion training_step calls against_exact_qp --quick

bench-compare: setup  ## this tree and another commit, in turn: make bench-compare AGAINST=HEAD~1 BENCH="step criterion"
	OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks $(or $(BENCH),step criterion training_step) --against $(or $(AGAINST),HEAD~1)

dist: setup  ## a wheel and an sdist in dist/
	$(BIN)/python -m build --no-isolation

lint: setup  ## ruff and mypy (strict on proxsvm/)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) out build dist .cache *.egg-info .mypy_cache .ruff_cache .hypothesis
