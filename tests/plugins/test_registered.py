"""What may be registered: classes, and functions whose options have no annotation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import peermask
from peermask.errors import ConfigError
from peermask.registry import Registry


def test_a_class_and_unannotated_options() -> None:
    things: Registry[Any] = Registry("thing")

    class Made:
        def __init__(self, shape: tuple[int, ...], *, width: int = 3, depth=2) -> None:  # type: ignore[no-untyped-def]
            self.made = shape, width, depth

    class Plain(nn.Module): ...

    def unannotated(shape, width=3):  # type: ignore[no-untyped-def]
        return shape, width

    for name, make in (("made", Made), ("plain", Plain), ("function", unannotated)):
        things.register(name)(make)
    assert things["made"].options(width=5, depth=1).model_dump() == {"width": 5, "depth": 1}  # type: ignore[call-arg]
    assert things["plain"].options().model_dump() == {}
    assert things["plain"].summary == ""  # not that of its base class
    assert things["function"].options().model_dump() == {"width": 3}
    with pytest.raises(ValueError, match="width"):
        things["made"].options(width="wide")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="depth"):  # without an annotation the default says what it is
        things["made"].options(depth="deep")  # type: ignore[call-arg]
    assert things["made"].options(depth=0.5).model_dump()["depth"] == 0.5  # type: ignore[call-arg]


def test_an_annotation_that_names_nothing_is_one_line() -> None:
    things: Registry[Any] = Registry("thing")

    def bad(*, width: "Nothing" = 3) -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    things.register("bad")(bad)
    with pytest.raises(ConfigError, match=r"the options of 'bad' .* annotations that fail: name 'Nothing'"):
        _ = things["bad"].options


def test_a_model_registered_as_a_class_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nfrom peermask import plugin\n\n\n"
        "@plugin.models.register('own-class')\nclass Own(nn.Sequential):\n"
        "    def __init__(self, shape, classes, *, hidden=6):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))\n"
    )
    config = {"agents": 3, "rounds": 1, "graph": "ring", "model": {"name": "own-class", "hidden": 5}, "retention": 0.5}
    made = peermask.make_config({**config, "imports": [str(tmp_path / "mine.py")]})
    assert peermask.run_experiment(made, tmp_path / "run").status == "finished"


def test_resume_with_own_data_and_module(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((60, 3), np.float32), np.arange(60) % 3
    data = peermask.from_arrays(x, y, x, y)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 3))
    config = {"agents": 3, "rounds": 3, "graph": "ring", "partition": "iid", "retention": 0.5}
    whole = peermask.run_experiment(config, tmp_path / "whole", dataset=data, module=module)
    stopped = peermask.Execution(should_stop=lambda: True)
    peermask.run_experiment(config, tmp_path / "run", execution=stopped, dataset=data, module=module)
    resumed = peermask.resume_experiment(tmp_path / "run", dataset=data, module=module)
    assert (resumed.status, resumed.hash) == ("finished", whole.hash)
    with pytest.raises(peermask.PeermaskError):
        peermask.resume_experiment(tmp_path / "run")  # without the data it was made with
