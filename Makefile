# Two commands for a newcomer: make demo, make test.
PYTHON := .venv/bin/python

.PHONY: help setup demo test check format faults bench clean

help:
	@echo "make demo    the whole story in one go, on the embedded default"
	@echo "make test    everything that CI runs"
	@echo "make faults  the fault campaigns: 2,000 cases on admit(), 60 through Spark (an hour)"
	@echo "make bench   throughput of the boundary and of the analytics"
	@echo "make format  format the code and mend what can be mended"

setup:
	@scripts/setup.sh

demo: setup
	@.venv/bin/admitone demo

test: check
	$(PYTHON) -m pytest

check: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

faults: setup
	$(PYTHON) -m tests.faults.campaign

bench: setup
	$(PYTHON) -m benchmarks.throughput

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
