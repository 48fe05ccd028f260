"""A run that all tests of exports share."""

from __future__ import annotations

import pytest
from export_cases import run_small

from peermask.run.result import RunResult


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run_small(tmp_path_factory.mktemp("export") / "run")
