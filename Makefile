# Two commands on a fresh machine: `make demo` and `make test`. Both install into .venv first, each what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
FLOWER := $(CURDIR)/.venv-flower
FLOWER_READY := $(FLOWER)/.ready
SYSTEM_PYTHON ?= /usr/bin/python3
FLOWER_NEEDS := import sys, ensurepip; sys.exit(sys.version_info < (3, 11))
FLOWER_PYTHON ?= $(shell $(SYSTEM_PYTHON) -c '$(FLOWER_NEEDS)' 2>/dev/null && echo $(SYSTEM_PYTHON) || echo $(PYTHON))
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= auto
CODE := src tests examples benchmarks notebooks website
ALL := fedavg fedprox scaffold fedspeed fedacg fedagrac
# FedaGrac as its thesis sets it: lam grows as in Figure 4.2, where 0.1 lasts half as long as 0.5.
FEDAGRAC := --set 'fedagrac.lam=piecewise(0.1, {4: 0.5, 12: 1.0})' --set fedagrac.start=full

.PHONY: demo federation test docs notebooks site release lint test-fast test-long test-federation fuzz names bench bench-network bench-peers bench-speed format clean

demo: $(DEMO_READY)  ## tune six methods on the embedded digits and compare them: tables, curves, a page
	$(BIN)/undrift compare $(ALL) --tune lr=0.1,0.3,0.9 --seeds 5 --rounds 20 --clients 20 \
	  --dirichlet 0.3 --participation 0.5 --work gaussian:10:25 $(FEDAGRAC) --target 0.9 \
	  --out runs/demo --force

federation: $(DEMO_READY) $(FLOWER_READY)  ## three sites with tables of their own on this machine, from init to a page
	$(BIN)/undrift federation demo runs/federation-sites --out runs/federation --force

test: lint docs test-fast  ## everything that must hold

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)  ## the site into site/, strictly; with the notebooks' outputs where `make notebooks` has run
	$(BIN)/python -m mkdocs build --strict # --quiet would silence the warnings that strictness counts

notebooks: $(READY)  ## run every notebook, a minute or two, and keep its outputs for the site
	$(INSTALL) -e '.[jupyter]'
	$(BIN)/python -m website.execute

site: notebooks docs  ## the site with the outputs of every notebook, and a check that none is without
	$(BIN)/python -m website.notebooks site

release: $(READY)  ## sdist and wheel into dist/, checked, and installed into an environment of their own
	$(INSTALL) -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/pytest -m long tests/test_release.py

lint: $(READY)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy

# Tests start many interpreters, and each would compile the package again.
test-fast test-long: export PYTHONDONTWRITEBYTECODE =

test-fast: $(READY)
	$(BIN)/pytest -n $(WORKERS)

test-long: $(READY)  ## the statistical and exhaustive checks, minutes
	$(BIN)/pytest -n $(WORKERS) -m long

test-federation: $(READY) $(FLOWER_READY)  ## federations of processes, and of Flower's: refused, killed, cut off; minutes
	$(BIN)/pytest -n $(WORKERS) -m long tests/federation tests/engine/processes/test_here_command.py
	UNDRIFT_FLOWER=$(FLOWER) $(BIN)/pytest -m flower tests/deployment

fuzz: $(READY)  ## every reader of foreign bytes, ten minutes a target, two at a time
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m benchmarks.fuzz --seconds 600 --out fuzz.json

names: $(READY)  ## names.json and the tables of docs from the classes, after a method has changed
	$(BIN)/python -m undrift.cli.generate

bench: $(READY)  ## one-bit operations and the cost of minibatches on this machine
	$(BIN)/python benchmarks/onebit.py
	$(BIN)/python benchmarks/batches.py

bench-network: $(READY)  ## processes, and links limited by network namespaces (root), minutes
	$(BIN)/python -m benchmarks.processes
	$(BIN)/python -m benchmarks.wire
	$(BIN)/python -m benchmarks.time_to_accuracy

bench-peers: $(READY)  ## an environment for each of the libraries that undrift is compared with
	$(BIN)/python -m benchmarks.speed.peers build

bench-speed: $(READY)  ## the same work in all of them, in turns, an hour; the tables of README and docs from it
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.speed.table
	$(BIN)/python -m benchmarks.speed.methods
	$(BIN)/python -m benchmarks.speed.profile --write docs/performance.md

format: $(READY)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[dev]'
	@! $(BIN)/pip list --format=freeze | grep -i '^nvidia' || (echo 'CUDA wheels were installed; see constraints.txt'; exit 1)
	touch $(READY) $(DEMO_READY)

$(DEMO_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[report,tables]'
	touch $(DEMO_READY)

# Flower's requirements clash with others', so it has an environment of its own. What it runs at a site runs as another
# user, who must be able to start the interpreter; that of the system is one that all can start, if it is new enough.
$(FLOWER_READY): Makefile
	$(FLOWER_PYTHON) -m venv --clear $(FLOWER)
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check flwr==1.41.0
	touch $(FLOWER_READY)

clean:
	rm -rf $(VENV) $(FLOWER) runs site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
