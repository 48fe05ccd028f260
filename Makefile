# `make run` and `make test` do all set-up themselves, from a bare clone.
PYTHON ?= python3
BIN := .venv/bin
# Tests of fleets and ranks wait for each other much of the time. More than 16 workers only take memory, 1 GB each.
WORKERS ?= $(shell n=$$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )); echo $$(( n < 16 ? n : 16 )))
# `make test MEASURED=1` notes which statements run; `make coverage` adds up what was noted.
PYTEST = $(BIN)/python $(if $(MEASURED),-m coverage run) -m pytest --dist worksteal -n

.PHONY: run test test-long test-all test-bits test-kernels coverage check format docs dist clean

run: .venv/.installed
	@$(BIN)/peermask run

test: .venv/.installed-dev
	@$(PYTEST) $(WORKERS)

# Tests that take seconds each on any machine: real training, and processes with all their imports.
test-long: .venv/.installed-dev
	@$(PYTEST) $(WORKERS) -m long

# Both, which takes less time than one after the other.
test-all: .venv/.installed-dev
	@$(PYTEST) $(WORKERS) -m "long or not long"

# Tests that compare bits, with the arithmetic of a CPU without AVX: one machine stands for two.
test-bits: .venv/.installed-dev
	@ATEN_CPU_CAPABILITY=default $(PYTEST) $(WORKERS) $(addprefix tests/,algorithms compute contract kernels masks models run wire)

# The GPU's kernels, interpreted on a CPU; Triton is a gigabyte, so `make test` skips them where it is not there.
# The second run has no interpreter: it checks that the warm-up compiles every variant of a kernel that a round launches.
test-kernels: .venv/.installed-kernels
	@TRITON_INTERPRET=1 $(PYTEST) auto tests/kernels
	@$(PYTEST) 0 tests/kernels/test_trials.py

# Fails below the share of statements that pyproject.toml asks for.
coverage: .venv/.installed-dev
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report --skip-covered

check: .venv/.installed-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file tests/mypy.ini

format: .venv/.installed-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# The documentation as a site, in site/; a link that leads nowhere is an error.
docs: .venv/.installed-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict

# The sdist and the wheel, in dist/.
dist: .venv/.installed-dev
	@$(BIN)/python -m hatchling build

clean:
	rm -rf .venv dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

.venv/.installed: pyproject.toml constraints.txt
	@echo "setting up .venv (once, a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "adding the tools for checks and tests"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.venv/.installed-kernels: .venv/.installed-dev tests/kernels/requirements.txt
	@echo "adding Triton"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r tests/kernels/requirements.txt
	@touch $@
