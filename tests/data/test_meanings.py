"""Groups of agents that mean different things by the same labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Refused
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.data import digits
from peermask.errors import DataError
from peermask.run.build import share_data

DIGITS = digits.digits()


def config(partition: str, **options: int) -> ExperimentConfig:
    return make_config(
        {
            "agents": 6,
            "data": {"fraction": 0.2, "validation": 0.25},
            "partition": {"name": partition, "labels_per_agent": 3, **options},
        }
    )


def test_agents_have_the_samples_of_labels_under_the_numbers_of_their_group() -> None:
    plain, parts = share_data(config("labels"), DIGITS)
    renamed, own = share_data(config("meanings", groups=3), DIGITS)
    for agent in range(6):
        shift = agent // 2
        assert own[agent].labels == tuple(sorted((label + shift) % 10 for label in parts[agent].labels))
        before = np.sort(np.concatenate([parts[agent].train, parts[agent].validation]))
        index = np.sort(np.concatenate([own[agent].train, own[agent].validation]))
        assert len(index) == len(before)
        for part, (one, samples), (other, found) in (
            ("train", (plain.train, before), (renamed.train, index)),
            ("test", (plain.test, parts[agent].test), (renamed.test, own[agent].test)),
        ):
            assert torch.equal(other.inputs[found], one.inputs[samples]), part
            assert torch.equal(other.targets[found], (one.targets[samples] + shift) % 10), part


def test_one_group_means_the_same_as_labels() -> None:
    _, parts = share_data(config("labels"), DIGITS)
    _, own = share_data(config("meanings", groups=1), DIGITS)
    assert [one.labels for one in own] == [one.labels for one in parts]
    assert own.sizes.tolist() == parts.sizes.tolist()


@pytest.mark.parametrize("groups", [7, 11])
def test_more_groups_than_agents_or_labels_are_refused(groups: int) -> None:
    with pytest.raises(DataError, match=f"partition.groups is {groups}; it can be at most"):
        share_data(config("meanings", groups=groups), DIGITS)


def test_no_group_is_refused(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('partition = { name = "meanings", groups = 0 }\n')
    assert "partition.groups = 0" in refused("run", path)
