"""What liars send, and that nobody else's message changes."""

from __future__ import annotations

import pytest
import torch

from peermask.algorithms.contract import Clock
from peermask.algorithms.liars import LiarOptions, Liars, pick_liars
from peermask.errors import ConfigError
from peermask.graph.links import Links
from peermask.masks.guard import distances, ones_by_layer

SIZES = (600, 200)
CPU = torch.device("cpu")


def honest(agents: int = 6) -> torch.Tensor:
    """Masks that differ from each other in a few entries, with as many ones in every layer."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(agents):
        parts = [torch.arange(size) % 2 == 0 for size in SIZES]
        for part in parts:
            on, off = part.nonzero()[:, 0], (~part).nonzero()[:, 0]
            swap = len(part) // 50
            part[on[torch.randperm(len(on), generator=generator)[:swap]]] = False
            part[off[torch.randperm(len(off), generator=generator)[:swap]]] = True
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def liars(kind: str) -> Liars:
    return Liars(kind, (1, 4), SIZES, 0, CPU)


EVERYONE = Links.of(~torch.eye(6, dtype=torch.bool))


@pytest.mark.parametrize("kind", ["random", "inverted", "crafted"])
def test_only_liars_rows_change(kind: str) -> None:
    masks = honest()
    told = liars(kind).falsify({"mask": masks}, EVERYONE, Clock(3, 10))["mask"]
    changed = [bool((told[i] != masks[i]).any()) for i in range(6)]
    assert changed == [False, True, False, False, True, False]


@pytest.mark.parametrize("kind", ["random", "crafted"])
def test_a_lie_has_as_many_ones_in_every_layer(kind: str) -> None:
    masks = honest()
    told = liars(kind).falsify({"mask": masks}, EVERYONE, Clock(3, 10))["mask"]
    assert torch.equal(ones_by_layer(told, SIZES), ones_by_layer(masks, SIZES))


def test_random_lies_differ_by_agent_and_round() -> None:
    masks, lying = honest(), liars("random")
    first, second = (lying.falsify({"mask": masks}, EVERYONE, Clock(k, 10))["mask"] for k in (1, 2))
    assert not torch.equal(first[1], second[1])
    assert not torch.equal(first[1], first[4])
    assert torch.equal(lying.falsify({"mask": masks}, EVERYONE, Clock(1, 10))["mask"], first)


def test_a_crafted_mask_lies_just_inside_the_guard() -> None:
    masks = honest()
    told = liars("crafted").falsify({"mask": masks}, EVERYONE, Clock(1, 10))["mask"]
    everyone = Links.of(torch.ones(1, 6, dtype=torch.bool))
    usual = float(everyone.median(distances(masks[1:2], masks, everyone, SIZES)))
    lie = float(distances(masks[1:2], told[1:2], Links.of(torch.ones(1, 1, dtype=torch.bool)), SIZES))
    assert 0.5 * usual < lie <= 1.5 * usual


def test_real_values_are_turned_round() -> None:
    values = torch.arange(12.0).view(6, 2)
    told = liars("inverted").falsify({"weights": values}, EVERYONE, Clock(1, 10))["weights"]
    assert told[1].tolist() == [-2.0, -3.0]
    with pytest.raises(ConfigError, match="only masks can be crafted"):
        liars("crafted").falsify({"weights": values}, EVERYONE, Clock(1, 10))


def test_who_lies_among_few_lies_among_many() -> None:
    few, many = (pick_liars(LiarOptions(count=count), 20, 0) for count in (2, 8))
    assert len(many) == 8
    assert set(few) < set(many)
