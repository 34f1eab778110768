# Everything runs from a virtual environment in $(VENV), made by $(PYTHON), 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# Test processes; each computes on one thread, so this is the number of cores to use.
JOBS ?= 2

BIN := $(VENV)/bin
# Touched after an installation: the next call installs again only if the requirements changed.
INSTALLED_DEMO := $(VENV)/.installed-demo
INSTALLED_TEST := $(VENV)/.installed-test
INSTALLED_BENCH := $(VENV)/.installed-bench
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALLED_BROWSER := $(VENV)/.installed-browser
INSTALLED_DIST := $(VENV)/.installed-dist
REQUIREMENTS := pyproject.toml constraints.txt
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-browser lint bench bench-check docs dist fuzz clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED_DEMO) ## install, and run `damc demo`
	$(BIN)/damc demo

test: lint ## install, check all that lint does, run the fast tests and every example
	$(PYTEST)

test-all: lint ## the same, with the slow statistical tests and the speed floors too
	$(PYTEST) -m "not browser"
	$(BIN)/python -m benchmarks --check

test-browser: $(INSTALLED_BROWSER) ## install Chromium if need be, and use `damc app` in it
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/python -m pytest -m browser tests/browser

docs: $(INSTALLED_DOCS) ## run the notebooks, build the site into build/site; a broken link fails
	$(BIN)/python docs/tutorials/run.py --out build/notebooks
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(INSTALLED_TEST) ## check format, lint, types, and that imports point down
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict damc
	$(BIN)/lint-imports

bench: $(INSTALLED_BENCH) ## measure speed and quality, print the tables
	$(BIN)/python -m benchmarks

bench-check: $(INSTALLED_TEST) ## fail if a speed ratio fell below its recorded floor
	$(BIN)/python -m benchmarks --check

dist: $(INSTALLED_DIST) ## build the wheel and the sdist into dist/, and check both
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

fuzz: $(INSTALLED_TEST) ## break run folders, detectors, data files and settings for MINUTES, 5
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5)

clean: ## remove caches and build products, and forget the installation; runs stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find damc tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(INSTALLED_DEMO) $(INSTALLED_TEST) $(INSTALLED_BENCH)
	rm -f $(INSTALLED_DOCS) $(INSTALLED_BROWSER) $(INSTALLED_DIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("damc needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED_DEMO): $(REQUIREMENTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[demo]'
	touch $@

$(INSTALLED_TEST): $(REQUIREMENTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[test]'
	touch $@ $(INSTALLED_DEMO)

$(INSTALLED_BENCH): $(REQUIREMENTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[test,bench]'
	touch $@ $(INSTALLED_TEST) $(INSTALLED_DEMO)

$(INSTALLED_DOCS): $(REQUIREMENTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[docs]'
	touch $@

$(INSTALLED_DIST): $(REQUIREMENTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[release]'
	touch $@

$(INSTALLED_BROWSER): $(REQUIREMENTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[browser]'
	touch $@ $(INSTALLED_TEST) $(INSTALLED_DEMO)
