# make fuzz    make .venv, run a 3-minute campaign on the CPU, end by showing its findings
# make check   make .venv; lint, types, layers and the fast tests
# make test    make .venv; lint, types, layers and all tests
# TORCH=2.15.0 does it under another torch, 2.11 or later, in .venv-2.15.0
# PIP_ARGS reaches pip, for example: make fuzz PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?=
TORCH ?=
PIP_ARGS ?=
BUDGET ?= 3m
FUZZ_ARGS ?=
PYTEST_ARGS ?= -n 2 --dist worksteal

VENV := .venv$(TORCH:%=-%)
BIN := $(VENV)/bin
TESTED := constraints/tested.txt
PINS := $(VENV)/constraints.txt
# Another torch brings the triton and setuptools that it needs.
REPIN := $(if $(TORCH),/^(triton|setuptools)==/d; s/^torch==.*/torch==$(TORCH)/)
FAST := not worker and not compiles and not triton_interpreter and not samples
PACKAGES := $(wildcard generators kernels corpus fuzz triage)

ifneq ($(TORCH),)
ifeq ($(shell echo '$(TORCH)' | grep -xE '(2\.(1[1-9]|[2-9][0-9])|[3-9]\.[0-9]+)(\.[0-9]+[a-z0-9.]*)?(\+[a-z0-9.]+)?'),)
$(error TORCH=$(TORCH): name a torch version from 2.11 on, such as 2.15.0)
endif
endif

.PHONY: venv fuzz check test lint types layers clean
.DEFAULT_GOAL := test

venv: $(VENV)/.complete

$(VENV)/.complete: pyproject.toml $(TESTED)
	@python="$$(.ci/find-python $(PYTHON))" || exit 2; \
	echo "making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV) || { echo "error: $$python has no working venv module (Debian: apt-get install python3-venv)" >&2; exit 2; }
	sed -E '$(REPIN)' $(TESTED) > $(PINS)
	$(BIN)/python -m pip install --quiet --constraint $(PINS) $(PIP_ARGS) pip
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --build-constraint $(TESTED) $(PIP_ARGS) . --group dev
	@touch $@

fuzz: venv
	@$(BIN)/python -m fuzz.run --budget $(BUDGET) $(FUZZ_ARGS); status=$$?; \
	if [ $$status -eq 1 ]; then exit 0; fi; exit $$status  # 1: new findings, which is what a campaign is for

check: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "$(FAST)" tests

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: venv types layers
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check .

types: venv
	$(BIN)/mypy $(PACKAGES) tests benchmarks conftest.py

layers: venv
	$(BIN)/lint-imports

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache attnfuzz.egg-info build
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
