"""Distances of masks worked by hand, and whom the guard believes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from peermask.graph.links import Links
from peermask.masks.guard import believed_links, distances


def masks(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def all_heard(mine: torch.Tensor, received: torch.Tensor) -> Links:
    return Links.of(torch.ones(len(mine), len(received), dtype=torch.bool))


def test_distance_by_hand() -> None:
    """Two of four ones, half in common: (2 − 1) / (2 − 2·2/4) = 1; the same mask 0; the opposite 2; a subset 0."""
    mine = masks([1, 1, 0, 0])
    received = masks([1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0])
    assert distances(mine, received, all_heard(mine, received), (4,)).tolist() == [1.0, 0.0, 2.0, 0.0]


def test_distance_over_two_layers() -> None:
    """Layer 1 as above: 1 of 1; layer 2, one of two against the other: 1 of 1 − ½; together 2 / 1.5."""
    mine, other = masks([1, 1, 0, 0, 1, 0]), masks([1, 0, 1, 0, 0, 1])
    distance = distances(mine, other, all_heard(mine, other), (4, 2))
    torch.testing.assert_close(distance, torch.tensor([2 / 1.5], dtype=torch.float64))


def test_a_mask_that_keeps_everything_is_near_to_all() -> None:
    mine, other = masks([1, 1, 1]), masks([1, 1, 1])
    assert distances(mine, other, all_heard(mine, other), (3,)).tolist() == [0.0]


def random_mask(generator: torch.Generator, size: int, keep: int) -> torch.Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=generator)[:keep]] = True
    return mask


@given(seed=st.integers(0, 999), neighbours=st.integers(1, 12), keep=st.integers(1, 60))
def test_an_honest_fleet_with_equal_masks_drops_nobody(seed: int, neighbours: int, keep: int) -> None:
    mask = random_mask(torch.Generator().manual_seed(seed), 60, keep)[None]
    received = mask.repeat(neighbours, 1)
    assert bool(believed_links(mask, received, all_heard(mask, received), (40, 20), 1.5).pairs.all())


@given(seed=st.integers(0, 999), liars=st.integers(1, 8), place=st.integers(0, 20), inverted=st.booleans())
def test_a_far_mask_is_dropped_wherever_it_stands(seed: int, liars: int, place: int, inverted: bool) -> None:
    """Also where those who send it are the majority of three honest neighbours: the fixed limit holds."""
    generator = torch.Generator().manual_seed(seed)
    mine = random_mask(generator, 2000, 1000)
    near = mine.clone()
    near[mine.nonzero()[:20]], near[(~mine).nonzero()[:20]] = False, True
    rows = [near] * 3
    for _ in range(liars):
        rows.insert(place % (len(rows) + 1), ~mine if inverted else random_mask(generator, 2000, 1000))
    received = torch.stack(rows)
    kept = believed_links(mine[None], received, all_heard(mine[None], received), (1500, 500), 1.5).pairs[0]
    assert kept.tolist() == [bool(torch.equal(row, near)) for row in rows]


def test_who_is_not_heard_is_not_believed() -> None:
    mine, received = masks([1, 1, 0, 0]), masks([1, 1, 0, 0], [1, 1, 0, 0])
    assert believed_links(mine, received, Links.of(masks([0, 1])), (4,), 1.5).pairs.tolist() == [[False, True]]
    assert believed_links(mine, received, Links.of(masks([0, 0])), (4,), 1.5).pairs.tolist() == [[False, False]]
