# make setup | servers | check | test-fast | test | soak | docs | bench | demo.  Nothing is needed before but Python 3.11+, git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
EXTRAS := dev,docs,parquet,plot,pandas,compat,server,train,export,dashboard,notify,traces
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup servers check format test-fast test soak docs docs-pictures bench demo clean

help:
	@echo "make setup   environment in $(VENV) with everything below"
	@echo "make servers Redis, RabbitMQ, Slurm and Open MPI for the tests, which start them by hand; as root, on Debian or Ubuntu"
	@echo "make check   format, lint, types, and whether the documentation builds"
	@echo "make test-fast  unit and contract tests, in under two minutes on two cores"
	@echo "make test    all tests"
	@echo "make soak    more storms of kills and examples of properties than in make test, and a study under 1,000 random faults; another seed: make soak SEED=7"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make docs-pictures  the pictures of the dashboard in docs/images, taken anew"
	@echo "make bench   every row of the table in docs/benchmarks.md; some of them: make bench ROWS=\"plan status\""
	@echo "make demo    an ensemble of fusion simulations, its shards, and a surrogate with its report, in ./demo_output"

setup: $(STAMP)

# of these rules the first is for everything, the second for what the demo needs: 71 packages of 117, and their time
$(STAMP): WANTED := $(EXTRAS)
$(DEMO_STAMP): WANTED := plot,train,dashboard
$(STAMP) $(DEMO_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Merlin needs Python 3.11 to 3.13; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11") if not (3, 11) <= sys.version_info[:2] <= (3, 13) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(WANTED)]' -c constraints.txt
	touch $@

servers:
	@tests/install_servers.sh

# every page in the navigation, every link and every anchor is there
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MKDOCS) --site-dir .cache/site

docs: setup
	$(MKDOCS) --site-dir site

# needs a chromium (make servers)
docs-pictures: setup
	$(BIN)/python docs/take_pictures.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# tests start thousands of processes, all of which would compile the same modules, and start threads that turn while they wait
unexport PYTHONDONTWRITEBYTECODE
test-fast test: export OPENBLAS_NUM_THREADS := 1
test-fast test: export OMP_WAIT_POLICY := passive
# more than there are cores, because tests wait: many of those that start servers, few of the fast ones
CORES := $(shell nproc 2> /dev/null || echo 2)
test-fast: TEST_JOBS ?= $(shell echo $$(($(CORES) < 7 ? $(CORES) + 2 : 8)))
test: TEST_JOBS ?= $(shell echo $$(($(CORES) < 5 ? $(CORES) + 4 : 8)))

test-fast: setup servers
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder tests/contract tests/unit

# those that take longest begin first; pytest ends with 5 when it finds no test at all, which is a failure here too
test: setup servers
	@tests/install_readers.sh
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --durations 40 \
	  tests/system/slurm tests/system/faults tests/compat tests/system tests/contract tests/unit

SEED ?=
FAULTS ?= 1000
STORMS := $(addprefix tests/system/,faults/test_publishing_faults.py faults/test_hostile_messages.py test_data_set_writing.py test_kill_and_resume.py \
  test_packing_storm.py test_shards_damage.py train/test_training.py slurm/test_cluster.py slurm/test_losing_nodes.py)
soak: setup servers
	MERLIN_SOAK_LONG=1 $(BIN)/python -m pytest --timeout 1800 tests/unit tests/contract/test_damaged_redis.py tests/compat $(STORMS)
	MERLIN_SOAK_FAULTS=$(FAULTS) MERLIN_SOAK_SEED=$(SEED) $(BIN)/python -m pytest -s tests/system/faults/test_soak.py tests/system/faults/test_rabbit_faults.py

ROWS ?=
bench: export PYTHONPATH := $(CURDIR)/tests/bench:$(CURDIR)/tests/support:$(CURDIR)/specs/icf
bench: setup servers
	$(BIN)/python tests/bench/run.py $(ROWS)

# more samples, more training: make demo DEMO_VARS="N_SAMPLES=20000 EPOCHS=100"
DEMO_VARS ?=
demo: $(if $(wildcard $(STAMP)),setup,$(DEMO_STAMP))
	@export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	mkdir -p demo_output; \
	merlin run specs/icf/icf_train.yaml --local --vars OUTPUT_PATH=$(CURDIR)/demo_output $(DEMO_VARS); \
	workspace=$$(ls -1d demo_output/icf_train_* | tail -n 1); \
	echo; echo "== merlin shards describe $$workspace"; merlin shards describe "$$workspace"; \
	echo; echo "== merlin shards plot $$workspace"; merlin shards plot "$$workspace" --out demo_output/data_set.png; \
	merlin shards plot "$$workspace" --out demo_output/data_set.html; \
	echo; echo "== merlin status $$workspace"; merlin status "$$workspace"; \
	echo; echo "== merlin shards verify $$workspace"; merlin shards verify "$$workspace"; \
	echo; echo "== merlin evaluate $$workspace/tournament/run"; cat "$$workspace/evaluate/evaluate.out"; \
	cp "$$workspace/evaluate/report.html" demo_output/surrogate.html; \
	echo; echo "== merlin report $$workspace"; merlin report "$$workspace" -o demo_output/report.html; \
	echo; echo "workspace  $(CURDIR)/$$workspace"; \
	echo "pictures   $(CURDIR)/demo_output/data_set.png and data_set.html"; \
	echo "surrogate  $(CURDIR)/$$workspace/tournament/run, its errors in $(CURDIR)/demo_output/surrogate.html"; \
	echo "report     $(CURDIR)/demo_output/report.html"; \
	echo "dashboard  $(CURDIR)/$(BIN)/merlin dashboard --root $(CURDIR)/demo_output"

clean:
	rm -rf demo_output build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
