# Needs only Python and make; everything else goes into a virtual environment here, one for each version of torch.
#   make help                       what there is
#   make test TORCH=2.8.0            the suite on another torch
#   make test ARGS="-k guard"        arguments for pytest, the demo or the benchmarks
#   make test PYTHON=python3.13 VENV=.venv-3.13
#   make test PYTHON=python3.10 VENV=.venv-3.10 TORCH=2.14.1    the newest that has wheels for Python 3.10

PYTHON ?= python3
USUAL_TORCH := 2.15.0
TORCH ?= $(USUAL_TORCH)
VENV ?= .venv$(if $(filter-out $(USUAL_TORCH),$(TORCH)),-torch$(TORCH))
ARGS ?=
# Processes that run tests beside each other: most tests wait, so four keep two cores busy.
WORKERS ?= 4

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-all install lint bench faults docs dashboards kubernetes-rules browser stack up down pictures wheels clean constraints

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(STAMP)  ## a stall, and its diagnosis; ARGS="--fault kill" and others
	$(BIN)/otel-torchdist demo $(ARGS)

# Compiled before: each of the suite's hundreds of processes would compile it where PYTHONDONTWRITEBYTECODE is set.
COMPILE = $(BIN)/python -m compileall -q otel_torchdist tests deploy
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

# Pytest keeps the tests as it has rewritten them, which takes each process 8 seconds of a core.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)  ## what tells a right change from a wrong one; ARGS="-k guard", TORCH=2.8.0, WORKERS=0
	$(COMPILE)
	$(PYTEST) -m "not thorough" $(ARGS)

test-all: $(STAMP)  ## the whole suite; ARGS="-m thorough" for what `make test` leaves out
	$(COMPILE)
	$(PYTEST) $(ARGS)

# Into the environment of PYTHON, and not into the one here: an active venv's or conda environment's, or the one named.
EXTRAS ?= cli
install:  ## installs it for your own programs; PYTHON=/path/to/bin/python, EXTRAS=cli,nvml
	@$(PYTHON) -m installation $(EXTRAS)

# Pyright is pinned in constraints.txt, so its advice to take a newer one is no news.
lint: export PYRIGHT_PYTHON_IGNORE_WARNINGS = true
lint: $(STAMP)  ## ruff, pyright, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python --project grafana
	$(BIN)/lint-imports

faults: $(STAMP)  ## faults in real processes, and what is reported of each
	$(BIN)/python -m tests.jobs.faults

bench: $(STAMP)  ## what recording costs
	$(BIN)/python -m benchmarks $(ARGS)

# The pages of reference in docs, from the code that they describe; and the pages that agents serve, as HTML.
docs: $(STAMP)  ## the pages of reference in docs, and the HTML that agents serve
	$(BIN)/python -m reference

# Writes grafana/dashboards from the code beside it; needs Python 3.11.
dashboards: $(STAMP)  ## the dashboards for Grafana
	$(BIN)/python -m grafana

# The rules of deploy/prometheus/rules as a resource of the Prometheus operator.
kubernetes-rules: $(STAMP)  ## the rules for the Prometheus operator
	$(BIN)/python deploy/kubernetes/prometheus_rule.py

# Pages are tested in a real browser: Debian's, driven by Playwright, which downloads none of its own.
# The headless one is enough: it draws no windows, and so takes a third of the processor time.
browser:  ## installs Debian's Chromium, headless, where there is none and the user is root
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update --quiet=2 && for package in chromium-headless-shell chromium; do \
			apt-get install --quiet=2 --yes --no-install-recommends $$package && break; done; \
	else echo "no Chromium: tests of pages are skipped; on Debian, root installs it with: make browser" >&2; fi

# The real servers; in the user's cache, not here.
stack:  ## builds Jaeger, Collector, Prometheus and Alertmanager
	$(MAKE) --directory deploy/native

# They run in the background, on loopback, with a job that stalls.  make up PROMETHEUS_PORT=9091
up: stack $(STAMP)  ## runs them with a job that stalls
	$(BIN)/python -m deploy.native up

down: $(STAMP)  ## stops them
	$(BIN)/python -m deploy.native down

# What README and docs show, from a real demo and a real Jaeger.
pictures: stack $(STAMP)  ## the pictures of README and docs
	$(BIN)/python -m pictures

# With a native library for each version of torch in those for Linux; ARGS="--torch 2.15.0 --machine x86_64".
wheels: $(STAMP)  ## the wheels of a release, in dist
	$(BIN)/python -m wheels $(ARGS)

clean:  ## removes what was made here
	rm -rf .venv .venv-* .built build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

# Compiled here once: each of the suite's hundreds of processes would compile torch where PYTHONDONTWRITEBYTECODE is set.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraints constraints.txt \
		--build-constraints constraints.txt torch==$(TORCH) --editable '.[demo,dev,thirdparty]'
	touch $@

# Takes the newest versions for all Pythons; torch and what it brings for GPUs follow TORCH instead. For Python 3.10
# an older torch is looked at, for newer ones have no wheels there.
constraints: $(STAMP)  ## newest versions for all Pythons
	printf '%s\n' uv hatchling editables 'torch==$(TORCH); python_version >= "3.11"' > $(VENV)/tools.in
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --all-extras --no-header --no-annotate \
		--output-file $(VENV)/all.txt --upgrade pyproject.toml $(VENV)/tools.in
	grep -Ev '^(torch|triton|nvidia-.*|cuda-.*|colorama)==' $(VENV)/all.txt > constraints.txt
