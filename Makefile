# `make run` and `make test` do all set-up themselves, from a bare clone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test check format clean

run: .venv/.installed
	@$(BIN)/peermask run

test: .venv/.installed-dev
	@$(BIN)/python -m pytest -n auto --dist worksteal

check: .venv/.installed-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: .venv/.installed-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/.installed: pyproject.toml constraints.txt
	@echo "setting up .venv (once, a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "adding the tools for checks and tests"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
