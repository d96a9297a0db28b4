# Every target is one script; read that script to know what happens.
# HPCENV_YES=1 answers the one question that may be asked: to install packages through sudo.

.PHONY: help demo test fast lint campaign images docs bench bench-demo

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: ## from an empty machine to a proved two-rank training
	@scripts/setup demo
	@.venv/bin/python scripts/demo.py

test: ## set up what is missing, run every test within its area's budget
	@scripts/setup demo test
	@.venv/bin/python scripts/test.py lint fast network engine image mpi scheduler

fast: ## lint and the tests that take seconds
	@scripts/setup dev
	@.venv/bin/python scripts/test.py lint fast

lint: ## ruff, mypy, the walls between the packages
	@scripts/setup dev
	@.venv/bin/python scripts/test.py lint

campaign: ## what takes too long for every change
	@scripts/setup demo test
	@.venv/bin/python scripts/test.py campaign

images: ## write Containerfile and images/ anew: the default image's lock, and what follows from it
	@scripts/setup dev
	@.venv/bin/python scripts/images.py

docs: ## the documentation as a site in build-docs/
	@scripts/setup docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@echo "build-docs/index.html"

bench: ## measure, and write benchmarks/results and the tables of docs/benchmarks.md
	@scripts/setup demo test
	@.venv/bin/python -m benchmarks

bench-demo: ## `make demo` from nothing against the same by hand (long)
	@scripts/setup demo test
	@.venv/bin/python -m benchmarks demo
