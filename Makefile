# Bare `make` lists the targets. Every target makes .venv first, where it needs it.
.DEFAULT_GOAL := help
.PHONY: help setup demo test quick check fuzz plans poison golden chaos attack docs bench bench-flink bench-papers clean

PYTHON := .venv/bin/python
processes = $(if $(filter 1,$(PROCESSES)),,-n $(or $(PROCESSES),$(1)) --dist loadgroup)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup:  ## make .venv with Penstock in it (needs Python 3.11+ and Java 17+)
	@scripts/setup

demo: setup  ## one minute in a power company's control room: live tables, a summary, a plot
	@$(PYTHON) examples/control_room/demo.py

test: setup  ## run all tests, in two processes; PROCESSES=1 for one
	$(PYTHON) -m pytest $(call processes,2)

quick: setup  ## tests without Spark, goldens in two settings only, few random examples, plans, joins, crowds
	$(PYTHON) -m pytest $(call processes,2) -m "not spark and not long"

check: setup  ## what CI runs: lint, format, types, import rules, tests
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(MAKE) --no-print-directory test

fuzz: setup  ## new random examples against the oracle; EXAMPLES=200 per test
	PENSTOCK_EXAMPLES=$(or $(EXAMPLES),200) $(PYTHON) -m pytest tests/test_oracle.py

plans: setup  ## random plans of every operator and window against the oracle; CASES=2000 FIRST=0
	$(PYTHON) -m tests.random_plans --cases $(or $(CASES),2000) --first $(or $(FIRST),0)

poison: setup  ## damaged files of every format against plain readers; CASES=10000 FIRST=0
	$(PYTHON) -m tests.readers_fuzz --cases $(or $(CASES),10000) --first $(or $(FIRST),0)

golden: setup  ## rewrite the expected answers and plans in tests/golden* (look at the difference!)
	$(PYTHON) -m tests.golden_runner --rewrite
	$(PYTHON) -m tests.mistake_runner --rewrite
	$(PYTHON) -m tests.plan_runner --rewrite

chaos: setup  ## kill a run at every point and at random, and check what it left; ROUNDS=50 SEED=
	$(PYTHON) -m tests.chaos $(or $(ROUNDS),50) $(SEED)

attack: setup  ## damage every kind of file of a checkpoint and its sinks, in every way; ONLY=epoch
	$(PYTHON) -m tests.attack $(ONLY)

docs: setup  ## regenerate the generated pages and the pictures of docs/
	$(PYTHON) docs/make_configuration.py
	$(PYTHON) docs/make_papers.py
	$(PYTHON) -c "from penstock.expr.functions import document; print(document(), end='')" > docs/functions.md
	$(PYTHON) docs/make_pictures.py
	$(PYTHON) docs/make_heartbeats.py

bench: setup  ## run the benchmarks and write their table and picture into docs/; ONLY="join band"
	$(PYTHON) -m benchmarks $(ONLY) --raw docs/benchmarks.json --plot docs/benchmarks.png \
	  --page docs/performance.md

bench-flink: setup  ## make .venv-flink, which the benchmark against Flink needs (about 800 MB)
	$(PYTHON) -m benchmarks.against_flink

bench-papers: setup  ## run the experiments of the papers (a few minutes)
	.venv/bin/penstock bench tpmj --raw docs/papers-joins.json --plot docs/papers-joins.png
	.venv/bin/penstock bench lifetimes --raw docs/papers-lifetimes.json --plot docs/papers-lifetimes.png
	.venv/bin/penstock bench priorities --raw docs/papers-priorities.json --plot docs/papers-priorities.png
	$(PYTHON) docs/make_papers.py

clean:  ## remove everything that was made, .venv too
	rm -rf .venv .venv-flink build dist demo-output spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
