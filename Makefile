# `make demo` and `make test` each set up a fresh clone by themselves: they need python3 >= 3.11 and make.
# Another interpreter: make PYTHON=python3.12 test. Other arguments for pytest: make PYTEST_ARGS="-x -k shuffle" test.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= --numprocesses=auto
MINUTES ?= 10
# Frameworks whose tests are skipped without them. `FRAMEWORKS=` leaves them out: from some indexes PyTorch comes with all that
# a GPU needs, which is gigabytes; PIP_EXTRA_INDEX_URL names an index with builds for the CPU.
FRAMEWORKS ?= torch==2.13.0 jax==0.10.2
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# `make bench` measures the import of compiled code; tests/conftest.py does this for the tests, however they are started.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo test test-all coverage soak lint format docs release bench bench-quick bars profile setup clean

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/tpch.py

# Before a commit: all that a change in the library may break, in a few minutes.
QUICK := HYPOTHESIS_PROFILE=quick ARROWFLOW_CONTRACTS=brief
test: $(VENV)/.installed-test
	$(QUICK) $(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

# And the tests with the marker `slow`: processes, clusters, other frameworks, thousands of plans.
test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Coverage traces by `sys.monitoring` where that can see branches, which is from Python 3.14 on.
coverage: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses=auto --cov

# Searches for differences with new seeds, then for what long runs leave behind, each for as long as MINUTES says.
soak: $(VENV)/.installed-test
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m tests.fuzz --minutes $(MINUTES)
	$(BIN)/python -m tests.fuzz.soak --minutes $(MINUTES)

lint: $(VENV)/.installed-test $(VENV)/.installed-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, into site/; a warning is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Wheel and sdist into dist/, tried in clean environments of each Python here.
release: $(VENV)/.made
	$(BIN)/python -m tests.release

# Beside other libraries, each in an environment of its own: twenty to thirty minutes, and two to five. A bar that is missed ends nothing.
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.compare
	-$(BIN)/python -m benchmarks.ranks --rounds 1
	-$(BIN)/python -m benchmarks.cluster --rounds 1
	-$(BIN)/python -m benchmarks.features --rounds 3
	-$(BIN)/python -m benchmarks.sources --rounds 3
	$(BIN)/python -m benchmarks.report

bench-quick: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.compare --quick

# Beside loops by hand, and what arrowflow promises of itself.
bars: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks

# Where the time of each workload goes: its kernels one by one, beside the pipeline.
profile: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.profile

setup: $(VENV)/.installed-test $(VENV)/.installed-lint $(VENV)/.installed-bench $(VENV)/.installed-demo

clean:
	rm -rf .venv .venv-* demo-data benchmarks/data build dist site .coverage
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find arrowflow benchmarks examples tests -name __pycache__ -prune -exec rm -rf {} +

# The package with one dependency group of pyproject.toml; .ci/run names older packages in PIP_ARGS.
$(VENV)/.installed-%: $(VENV)/.made pyproject.toml
	$(PIP_INSTALL) --editable . --group $* $(PIP_ARGS)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.made pyproject.toml
	$(PIP_INSTALL) --editable . --group test $(PIP_ARGS)
	@for package in $(FRAMEWORKS); do \
	  $(PIP_INSTALL) --retries 1 $$package $(PIP_ARGS) || echo "no $$package here: its tests are skipped"; \
	done
	@touch $@

# `--group` needs pip 25.1.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "arrowflow needs Python 3.11 or newer; \`$(PYTHON)\` is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	@touch $@
