# Needs only Python and make; everything else goes into a virtual environment here, one for each version of torch.
#   make help                       what there is
#   make test TORCH=2.8.0            the suite on another torch
#   make test TORCH=2.16.0.dev20261101 TORCH_INDEX=https://…    on a pre-release, from the index that has it
#   make test ARGS="-k guard"        arguments for pytest, the demo or the benchmarks
#   make test PYTHON=python3.13 VENV=.venv-3.13
#   make test PYTHON=python3.10 VENV=.venv-3.10 TORCH=2.14.1    the newest that has wheels for Python 3.10
#   make test OPENTELEMETRY=1.39 ARGS=tests/telemetry           the oldest OpenTelemetry that is supported

PYTHON ?= python3
USUAL_TORCH := 2.15.0
TORCH ?= $(USUAL_TORCH)
# A pre-release, as its version says: a dev, alpha, beta or release candidate brings others of its dependencies.
IS_PRE_RELEASE := $(strip $(foreach mark,dev a0 a1 b0 b1 rc,$(findstring $(mark),$(TORCH))))
TORCH_INDEX ?=
PRE_RELEASES := $(if $(IS_PRE_RELEASE),--prerelease allow) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --index-strategy unsafe-best-match)
OPENTELEMETRY ?=
VENV ?= .venv$(if $(filter-out $(USUAL_TORCH),$(TORCH)),-torch$(TORCH))$(if $(OPENTELEMETRY),-opentelemetry$(OPENTELEMETRY))
ARGS ?=
# Processes that run tests beside each other: most tests wait, so four keep two cores busy.
WORKERS ?= 4

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-all pythons test-pythons install lint bench faults docs dashboards browser slurm mpi stack kubernetes-tools kubernetes-server image-base up down pictures wheels clean constraints release version gpu

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(STAMP)  ## a stall, and its diagnosis; ARGS="--fault kill" and others
	$(BIN)/otel-torchdist demo $(ARGS)

# Compiled before: each of the suite's hundreds of processes would compile it where PYTHONDONTWRITEBYTECODE is set.
COMPILE = $(BIN)/python -m compileall -q otel_torchdist tests deploy
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

# Pytest keeps the tests as it has rewritten them, which takes each process 8 seconds of a core.
# RECORD=yes keeps the result of a complete run for docs/compatibility.md.
RECORD ?=
test test-all: export PYTHONDONTWRITEBYTECODE =
test test-all: export TEST_RECORD = $(if $(RECORD),$(abspath reference/compatibility.json))
test: $(STAMP)  ## what tells a right change from a wrong one; ARGS="-k guard", TORCH=2.8.0, WORKERS=0
	$(COMPILE)
	$(PYTEST) -m "not thorough" $(ARGS)

test-all: $(STAMP)  ## the whole suite; ARGS="-m thorough" for what `make test` leaves out
	$(COMPILE)
	$(PYTEST) $(ARGS)

# Debian's newest Pythons need root; PYTHONS=3.14,/path/to/python3.12 chooses among all.
pythons:  ## puts Debian's newest Pythons into the user's cache, for make test-pythons
	$(PYTHON) -m tests.pythons build

test-pythons: export PYTHONDONTWRITEBYTECODE =
test-pythons:  ## what depends on the interpreter, on every Python that there is
	$(PYTHON) -m tests.pythons run $(ARGS)

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

# Within 8 minutes: nccl-legacy and nccl2, two ranks on one GPU, tests/gpu, the time of a call. For docs/costs.md.
gpu: $(STAMP)  ## checks on a GPU, and tables of their results; ARGS="--limit 300"
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# The pages of reference in docs, from the code that they describe; and the pages that agents serve, as HTML.
docs: $(STAMP)  ## the pages of reference in docs, the HTML that agents serve, and copies in the chart
	$(BIN)/python -m reference

# Writes grafana/dashboards from the code beside it; needs Python 3.11.
dashboards: $(STAMP)  ## the dashboards for Grafana, and their copies in the chart
	$(BIN)/python -m grafana
	$(BIN)/python -m reference

# Pages are tested in a real browser: Debian's, driven by Playwright, which downloads none of its own.
# The headless one is enough: it draws no windows, and so takes a third of the processor time.
browser:  ## installs Debian's Chromium, headless, where there is none and the user is root
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update --quiet=2 && for package in chromium-headless-shell chromium; do \
			apt-get install --quiet=2 --yes --no-install-recommends $$package && break; done; \
	else echo "no Chromium: tests of pages are skipped; on Debian, root installs it with: make browser" >&2; fi

# Tests start a cluster of two nodes with it, as root. Without a slurm.conf, no daemon of it starts by itself.
slurm:  ## installs Debian's Slurm where there is none and the user is root
	@command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null && \
		command -v munged >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends \
			slurmctld slurmd slurm-client munge iproute2; \
	else echo "no Slurm: its tests are skipped; on Debian, root installs it with: make slurm" >&2; fi

# Tests start ranks with mpirun; torch needs no MPI.
mpi:  ## installs Debian's Open MPI where there is no mpirun and the user is root
	@command -v mpirun >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends openmpi-bin; \
	else echo "no mpirun: its tests are skipped; on Debian, root installs it with: make mpi" >&2; fi

# The real servers; in the user's cache, not here.
stack:  ## builds Jaeger, Collector, Prometheus and Alertmanager
	$(MAKE) --directory deploy/native

# They check the Helm chart. A server without nodes checks it, too, but takes up to an hour to build.
kubernetes-tools:  ## builds helm and kubeconform, and gets the definitions of operators' resources
	$(MAKE) --directory deploy/native kubernetes-tools

kubernetes-server:  ## builds Kubernetes' API server and kubectl, and installs etcd if the user is root
	$(MAKE) --directory deploy/native kubernetes-server
	@command -v etcd >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends etcd-server; \
	else echo "no etcd: tests of the API server are skipped" >&2; fi

# Where no registry of images can be reached: a Debian as the base of the images, in the user's cache. Needs root.
IMAGE_BASE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/otel-torchdist/stack/image-base
image-base: $(IMAGE_BASE)/.complete  ## a Debian on which tests build the images, without a registry
$(IMAGE_BASE)/.complete:
	rm -rf $(@D)
	debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm $(@D) \
		$(or $(DEBIAN_MIRROR),http://deb.debian.org/debian)
	rm -rf $(@D)/var/cache/apt/archives/*.deb $(@D)/var/lib/apt/lists/*
	touch $@

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

# Uploads nothing. Records calls on the torch of each environment here.  ARGS="--tag v0.2.0", as the workflow does.
release: $(STAMP)  ## wheels, sources, bill of materials and checksums in dist, checked and tried
	$(BIN)/python -m release $(addprefix --torch-python ,$(sort $(wildcard $(BIN)/python .venv*/bin/python))) $(ARGS)

# In pyproject.toml, and as the heading of what is unreleased in CHANGELOG.md.
VERSION ?=
version: $(STAMP)  ## sets the version of the next release: VERSION=0.2.0
	$(BIN)/python -m release.version $(VERSION)

clean:  ## removes what was made here
	rm -rf .venv .venv-* .built build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

# Compiled here once: each of the suite's hundreds of processes would compile torch where PYTHONDONTWRITEBYTECODE is set.
# For an older OpenTelemetry, its packages and those that it bounds are not held to constraints.txt. The package for
# OTEL_CONFIG_FILE, which needs the newest SDK, is left out: tests of it are skipped.
ifneq ($(OPENTELEMETRY),)
OLDER = opentelemetry-sdk==$(OPENTELEMETRY).* opentelemetry-exporter-otlp==$(OPENTELEMETRY).* --overrides $(VENV)/left-out.txt
CONSTRAINTS := $(VENV)/constraints.txt
else
CONSTRAINTS := constraints.txt
endif
$(STAMP): pyproject.toml constraints.txt | $(BIN)/uv
ifneq ($(OPENTELEMETRY),)
	grep -Ev '^(opentelemetry-|protobuf|googleapis-common-protos|importlib-metadata|wrapt)' constraints.txt > $(CONSTRAINTS)
	echo "opentelemetry-configuration; python_version < '3'" > $(VENV)/left-out.txt
endif
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraints $(CONSTRAINTS) \
		--build-constraints constraints.txt $(PRE_RELEASES) $(OLDER) torch==$(TORCH) --editable '.[demo,dev,thirdparty]'
	touch $@

# Takes the newest versions for all Pythons; torch and what it brings for GPUs follow TORCH instead. For Python 3.10
# an older torch is looked at, for newer ones have no wheels there.
constraints: $(STAMP)  ## newest versions for all Pythons
	printf '%s\n' uv hatchling editables 'torch==$(TORCH); python_version >= "3.11"' > $(VENV)/tools.in
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --all-extras --no-header --no-annotate \
		--output-file $(VENV)/all.txt --upgrade pyproject.toml $(VENV)/tools.in
	grep -Ev '^(torch|triton|nvidia-.*|cuda-.*|colorama)==' $(VENV)/all.txt > constraints.txt
