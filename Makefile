# Everything runs from the repository root. The first target that needs it builds .venv; it is brought up to date
# when pyproject.toml, requirements.lock or the kernels change.

# The first of these that runs, unless you name another: make PYTHON=…
ifndef PYTHON
PYTHON := $(or $(shell for python in python3.11 python3.12 python3.13; do $$python -c '' 2>/dev/null && echo $$python && break; done),python3.11)
endif
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell grep -E '^torch==' requirements.lock)

# ninja, which DeepSpeed calls by name, is in the environment's bin.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Each process computes with one thread and parallelism comes from processes: on shared cores, threads that spin
# while they wait for each other are many times slower.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
# What DeepSpeed compiles at first use (the optimizer of a configuration that offloads) is kept with the environment.
export TORCH_EXTENSIONS_DIR ?= $(CURDIR)/$(VENV)/torch_extensions
export TOKENIZERS_PARALLELISM ?= false
export RAY_USAGE_STATS_ENABLED ?= 0
export RAY_TRAIN_ENABLE_PRINT_PATCH ?= 0
# The tests and the service start hundreds of processes that import the same modules: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE
# jobs/ and serve/ are found where they lie, packages go to .venv, and tests assert, whatever a cluster's profile says.
unexport PYTHONSAFEPATH PYTHONOPTIMIZE PIP_TARGET PIP_PREFIX
export PIP_USER := 0

# A worker a core: with more, services start so slowly on two slow cores that Ray gives up on them. One that waits leaves
# its core to the processes of the other (tests/conftest.py says what stays together).
TEST_WORKERS ?= 2
# Unit tests wait for nothing: a worker a core, since each imports the same modules first.
UNIT_WORKERS ?= 2
PYTEST := HF_HUB_OFFLINE=1 WANDB_MODE=offline $(BIN)/python -m pytest --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit lint format docs serve train heads benchmark lock clean distclean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(STAMP): requirements.lock pyproject.toml $(wildcard platform/pasta/engine/cpp/*)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON): no Python that runs and is 3.11 or newer; install 3.11, 3.12 or 3.13, or say make PYTHON=…" >&2; exit 2; }
	@case "$(CURDIR)" in *" "*) echo "error: $(CURDIR): Ray cannot start workers from a path with a space; move the project" >&2; exit 2;; esac
	$(PYTHON) -m venv $(VENV)
	# torch first and alone: what is installed satisfies the lock, so a build of your choice stays in place.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(TORCH)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	# The kernels for this CPU. Without them everything works, at a slower pace.
	-$(BIN)/python -m jobs.kernels
	@touch $@

demo: $(STAMP) ## start the app, ask three prompts in sequential and parallel mode, show the speedup
	$(BIN)/python -m jobs.demo

test: $(STAMP) ## run all tests
	$(PYTEST) -n $(TEST_WORKERS)

test-unit: $(STAMP) ## run the quick tests, which start no Ray, no service and no browser (about two minutes)
	# What tests/e2e imports (Ray Serve, OpenAI's client, a browser's driver) is not needed to leave it out.
	$(PYTEST) -n $(UNIT_WORKERS) -m "not e2e and not slow" --ignore tests/e2e

lint: $(STAMP) ## check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## render the doc strings of pasta, serve and jobs to site/ (docs/ is read as it is)
	# The star imports what pasta.engine leaves to its first use: pdoc documents what is there.
	$(BIN)/python -c 'from pasta.engine import *; from pdoc.__main__ import cli; cli()' --output-directory site pasta serve jobs

serve: $(STAMP) ## serve the atlas model on this machine (OpenAI-compatible API)
	$(BIN)/python -m serve.run configs/serve/local.yaml

train: $(STAMP) ## train the two shipped models: copying, plain answers, tasks, talk, PASTA, more of both
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-copy.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-plain.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-twin.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-talk-twin.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-talk-pasta.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-last.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-people-twin.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-people-pasta.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-wide-twin.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-wide-pasta.yaml
	$(MAKE) heads

heads: $(STAMP) ## train the draft heads of the two shipped models, again whenever these have changed
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-heads-twin.yaml
	$(BIN)/python -m jobs.sft --config configs/sft/atlas-heads-pasta.yaml

benchmark: $(STAMP) ## measure the main figures of decoding in BENCHMARKS.md
	$(BIN)/python -m jobs.benchmark all

lock: ## make requirements.lock anew from pyproject.toml, in an environment of its own
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet $(TORCH)
	build/lock/bin/pip install --quiet '.[train,serve,dev]'
	{ sed '/^[^#]/,$$d' requirements.lock; \
	  build/lock/bin/pip freeze --all | grep -vE '^(pasta-platform|pip)[ =]' | sed -E 's/^(torch==[^+]*).*/\1/'; } > build/requirements.lock
	mv build/requirements.lock requirements.lock && rm -rf build/lock

clean: ## delete caches and build output
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -print0 | xargs -0r rm -rf

distclean: clean ## delete the environment too
	rm -rf $(VENV)
