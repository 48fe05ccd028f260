"""Small experiments that every test can afford."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from commands import Call, Refused
from machine import forget_environment
from not_tried import pytest_terminal_summary as pytest_terminal_summary
from peermask.cli.main import main
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from plugin_state import forget_plugins

forget_environment()
# A test that asserts a time fails on a busy machine.
# A test has the same examples everywhere, so that it does not fail by luck; EXPLORE=1 draws new ones.
settings.register_profile("untimed", deadline=None, derandomize="EXPLORE" not in os.environ)
settings.load_profile("untimed")

SMALL: dict[str, Any] = {
    "agents": 4,
    "rounds": 4,
    "batch_size": 8,
    "retention": [0.2, 0.3, 0.4, 0.5],
    "graph": {"name": "ring"},
    "data": {"fraction": 0.1},
    "model": {"name": "mlp", "hidden": [12]},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tests run side by side already."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """A test draws the same numbers alone, after others, and in any order."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_plugins() -> Iterator[None]:
    """What a test registers is forgotten with it, so that no other test sees it."""
    yield
    forget_plugins()


@pytest.fixture(scope="session")
def small() -> Callable[..., ExperimentConfig]:
    """`small(rounds=3)`: four agents on a ring with a few digits each."""

    def make(**changes: Any) -> ExperimentConfig:
        return make_config({**SMALL, **changes})

    return make


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """`call("run", path)`: the command in this process; exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def refused(call: Call) -> Refused:
    """The one line that a command with a mistake ends with."""

    def run(*arguments: object) -> str:
        code, out, err = call(*arguments)
        assert (code, out, err.count("\n"), err[:10]) == (2, "", 1, "peermask: ")
        return err

    return run
