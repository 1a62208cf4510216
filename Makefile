# `make demo` and `make test` need nothing but git, make and a Debian-like Linux: they install the rest themselves.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test check bench clean setup

PYTHON := .venv/bin/python
# What pytest is given: `make test ARGS="tests/unit -k wire"`.
ARGS ?=

help: ## Say what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## Install everything, without running anything
	@tools/setup --dev

demo: ## Run the examples on this machine: an agent's run, hibernation, checkpoints, a fork
	@tools/setup --runtime
	@tools/demo

test: ## Run every test, those on real guests too
	@tools/setup --dev
	@tools/test $(ARGS)

check: ## Lint, check formats, types, imports, generated code and pages
	@tools/setup --dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	$(PYTHON) tools/make_sync.py --check
	$(PYTHON) tools/make_docs.py --check

bench: ## Measure what this machine reaches, in a data directory of its own
	@tools/setup --runtime
	@export TORPOR_HOME="$${TORPOR_HOME:-build/bench-home}" && .venv/bin/torpor template build agent && .venv/bin/torpor bench $(ARGS)

clean: ## Remove the virtual environment, build folder and caches; never a sandbox's or template's data
	@if grep -qF " $(CURDIR)/build/" /proc/self/mounts; then echo "something is mounted under build/: stop it first" >&2; exit 1; fi
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis
	find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} +
