# Two commands for a newcomer: make demo, make test.
PYTHON := .venv/bin/python

.PHONY: help setup services demo test check format docs report faults simulate bench longrun endurance clean

help:
	@echo "make demo    the whole story in one go, on the embedded default"
	@echo "make test    everything that CI runs"
	@echo "make faults  the fault campaigns: crash points, databases, Kafka, Spark, ledgers and clocks struck thousands of times; with ONLY=boundary,spark some of them, with SEED=n the same again"
	@echo "make simulate 20,000 simulated histories of the boundary, on every core; HISTORIES=1000000 for more, SEED=n starts elsewhere"
	@echo "make report  write into docs/reliability.md what the last run of each campaign found"
	@echo "make bench   throughput of the boundary and of the analytics, on Kafka next to Kafka Streams; the ledger on PostgreSQL; look-ups"
	@echo "make longrun two hundred days of deduplication, compressed: 20 million keys, every decision checked (11 minutes)"
	@echo "make endurance  do the tests pass every time? five complete runs, two beside other work; services twenty times; across midnight"
	@echo "make format  format the code and mend what can be mended"
	@echo "make docs    write the parts of the documentation that are made from the code"

setup:
	@scripts/setup.sh

services:
	@scripts/setup.sh services

demo: setup
	@.venv/bin/admitone demo

test: services check
	$(PYTHON) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

check: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

docs: setup
	$(PYTHON) -m scripts.reference

faults: services
	$(PYTHON) -m tests.faults $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

simulate: setup
	$(PYTHON) -m tests.simulation.campaign --seed $(or $(SEED),1) --histories $(or $(HISTORIES),20000)

report: setup
	$(PYTHON) -m scripts.reference reliability.md

bench:
	@scripts/setup.sh services compiler
	$(PYTHON) -m benchmarks.throughput
	$(PYTHON) -m benchmarks.kafka_boundary
	$(PYTHON) -m benchmarks.postgres_ledger
	$(PYTHON) -m benchmarks.lookups

endurance:
	@scripts/setup.sh services clocks
	$(PYTHON) -m tests.endurance

longrun: setup
	$(PYTHON) -m benchmarks.longrun

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
