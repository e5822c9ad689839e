# Two commands on a fresh machine: `make demo` and `make test`. Both install into .venv first, each what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= auto
CODE := src tests examples benchmarks
ALL := fedavg fedprox scaffold fedspeed fedacg fedagrac
# FedaGrac as its thesis sets it: lam grows as in Figure 4.2, where 0.1 lasts half as long as 0.5.
FEDAGRAC := --set 'fedagrac.lam=piecewise(0.1, {4: 0.5, 12: 1.0})' --set fedagrac.start=full

.PHONY: demo test lint test-fast test-long fuzz names bench bench-network bench-peers bench-speed format clean

demo: $(DEMO_READY)  ## tune six methods on the embedded digits and compare them: tables, curves, a page
	$(BIN)/undrift compare $(ALL) --tune lr=0.1,0.3,0.9 --seeds 5 --rounds 20 --clients 20 \
	  --dirichlet 0.3 --participation 0.5 --work gaussian:10:25 $(FEDAGRAC) --target 0.9 \
	  --out runs/demo --force

test: lint test-fast  ## everything that must hold

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

bench-speed: $(READY)  ## the same work in all of them, in turns, an hour; the README's table from it
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
	$(INSTALL) -e '.[report]'
	touch $(DEMO_READY)

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
