"""The example in one file: short, on its own but for the data, and equal to the product."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peermask

SCRIPT = Path(__file__).parents[1] / "examples" / "one_file.py"


@pytest.fixture
def one_file() -> Iterator[dict[str, Any]]:
    """Its names; on one thread, as peermask computes an agent."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield runpy.run_path(str(SCRIPT))
    torch.set_num_threads(threads)


def test_it_is_one_short_file_that_takes_only_data_from_the_package() -> None:
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 200
    imported = re.findall(r"^\s*(?:from|import) (peermask\S*)", text, re.MULTILINE)
    assert imported
    assert all(name.startswith("peermask.data.") for name in imported)


@pytest.mark.long
def test_it_ends_with_the_masks_of_a_run(one_file: dict[str, Any], tmp_path: Path) -> None:
    result = peermask.run_experiment(peermask.make_config(one_file["CONFIG"]), tmp_path / "run")
    runs = {run.config.algorithm.name: run for run in (result, *result.compared)}
    for name, method in {"mce-pl": one_file["mce_pl"], "accord": one_file["accord"]}.items():
        masks = method()
        weights = torch.stack([masked_weights(model) for model in runs[name].local_models()])
        assert torch.equal(weights, one_file["W"] * masks), name
        assert one_file["accuracy"](masks) == pytest.approx(runs[name].mean("test_accuracy_last"), abs=1e-5)


def masked_weights(model: nn.Module) -> Tensor:
    """[P]: those of all layers, biases left out."""
    return torch.cat([p.detach().flatten() for name, p in model.named_parameters() if name.endswith("weight")])
