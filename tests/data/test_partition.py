"""However the samples are dealt, none is held twice and every agent has some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.data import partitions
from peermask.data.partition import Indices, apportion
from peermask.errors import DataError
from peermask.streams import stream


def deal(name: str, labels: Indices, agents: int, seed: int = 0, **options: Any) -> list[Indices]:
    entry = partitions[name]
    return entry.make(labels, agents, stream(seed, "partition"), **dict(entry.options(**options)))


def balanced(samples: int, classes: int = 10) -> Indices:
    return np.arange(samples, dtype=np.int64) % classes


@given(
    name=st.sampled_from(["labels", "iid", "dirichlet", "shards", "quantity"]),
    agents=st.integers(1, 12),
    counts=st.lists(st.integers(20, 60), min_size=6, max_size=6),
    seed=st.integers(0, 2**40),
)
def test_no_sample_is_held_twice_and_nobody_is_empty(name: str, agents: int, counts: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(6), counts)
    parts = deal(name, labels, agents, seed)
    together = np.concatenate(parts)
    assert len(parts) == agents
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    assert len(np.unique(together)) == len(together)
    if name != "labels" or agents * 3 >= 6:
        assert len(together) == len(labels)
    again = deal(name, labels, agents, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_everything_is_for_everybody() -> None:
    assert [part.tolist() for part in deal("everything", balanced(5), 3)] == [[0, 1, 2, 3, 4]] * 3


@given(agents=st.integers(1, 30), count=st.integers(1, 10), seed=st.integers(0, 1000))
def test_labels_are_all_held_and_everybody_has_its_number(agents: int, count: int, seed: int) -> None:
    labels = balanced(1000)
    parts = deal("labels", labels, agents, seed, labels_per_agent=count)
    assert [len(np.unique(labels[part])) for part in parts] == [count] * agents
    held = {int(label) for part in parts for label in labels[part]}
    assert len(held) == min(10, agents * count)


def test_a_label_is_split_evenly_among_its_holders() -> None:
    labels = balanced(700, classes=7)
    parts = deal("labels", labels, 5, labels_per_agent=[7, 1, 2, 3, 1])
    for label in range(7):
        counts = [n for part in parts if (n := int((labels[part] == label).sum()))]
        assert sum(counts) == 100
        assert max(counts) - min(counts) <= 1


def test_samples_are_dealt_at_random_and_by_seed() -> None:
    assert not np.array_equal(deal("iid", balanced(100), 2, seed=0)[0], deal("iid", balanced(100), 2, seed=1)[0])
    assert (np.diff(deal("labels", balanced(100, 1), 2, labels_per_agent=1)[0]) > 1).any()


@given(alpha=st.floats(1e-6, 1e6), agents=st.integers(1, 20), min_samples=st.integers(1, 10), seed=st.integers(0, 1000))
def test_dirichlet_always_ends_with_enough_for_everybody(
    alpha: float, agents: int, min_samples: int, seed: int
) -> None:
    labels = balanced(200, 4)
    for name in ("dirichlet", "quantity"):
        parts = deal(name, labels, agents, seed, alpha=alpha, min_samples=min_samples)
        assert min(map(len, parts)) >= min_samples
        assert sum(map(len, parts)) == 200


def test_alpha_sets_the_skew() -> None:
    labels = balanced(2000)
    few = deal("dirichlet", labels, 10, alpha=0.05)
    even = deal("dirichlet", labels, 10, alpha=1000)
    assert max(np.bincount(labels[part], minlength=10).max() / len(part) for part in even) < 0.2
    assert np.mean([np.bincount(labels[part]).max() / len(part) for part in few]) > 0.5
    assert np.ptp([len(part) for part in deal("quantity", labels, 10, alpha=0.1)]) > 500


def test_quantity_keeps_the_mix_of_labels() -> None:
    labels = balanced(1000, 4)
    for part in deal("quantity", labels, 5, alpha=0.3):
        assert np.ptp(np.bincount(labels[part], minlength=4)) <= 1


def test_shards_hold_few_labels() -> None:
    labels = balanced(1000)
    assert all(len(np.unique(labels[part])) <= 2 for part in deal("shards", labels, 5, shards_per_agent=2))


@pytest.mark.parametrize(
    ("name", "agents", "options", "message"),
    [
        ("labels", 2, {"labels_per_agent": 5}, "partition.labels_per_agent is 5, but the data has 4 labels"),
        ("labels", 2, {"labels_per_agent": [1, 1, 1]}, "partition.labels_per_agent has 3 numbers for 2 agents"),
        ("labels", 30, {"labels_per_agent": 1}, "agent .* is left without samples: partition.labels_per_agent is 1"),
        ("iid", 30, {}, "agent 20 is left without samples: agents is 30"),
        ("shards", 25, {}, "left without samples: partition.shards_per_agent is 2"),
        ("dirichlet", 3, {"min_samples": 7}, "min_samples is 7, but 20 samples give 3 agents at most 6 each"),
        ("quantity", 3, {"min_samples": 7}, "min_samples is 7, but 20 samples"),
    ],
)
def test_too_little_data_names_key_and_value(name: str, agents: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        deal(name, balanced(20, 4), agents, **options)


def test_apportioning_by_hand() -> None:
    assert apportion(10, [1, 1, 1]).tolist() == [4, 3, 3]
    assert apportion(7, [0.0, 3.0, 1.0]).tolist() == [0, 5, 2]


@given(total=st.integers(0, 1000), weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_apportioned_shares_sum_to_the_total(total: int, weights: list[float]) -> None:
    shares = apportion(total, weights)
    assert shares.sum() == total
    assert (np.abs(shares - total * np.array(weights) / sum(weights)) < 1 + 1e-9).all()


def test_dominant_labels_by_hand() -> None:
    """Ten samples: two of them one each of two labels, eight of the one dominant label."""
    labels = np.repeat([0, 1], 40)
    parts = partitions["dominant"].make(labels, 3, stream(0, "x"), samples=10, labels_per_agent=1, uniform=0.2)
    for part in parts:
        assert sorted(np.bincount(labels[part], minlength=2).tolist()) == [1, 9]
    assert len(np.unique(np.concatenate(parts))) == 30
    with pytest.raises(DataError, match=r"partition\.samples is 60: too many for 3 agents, label . runs out"):
        partitions["dominant"].make(labels, 3, stream(0, "x"), samples=60, labels_per_agent=1, uniform=0.2)
    with pytest.raises(DataError, match="labels_per_agent is 3, but the data has 2"):
        partitions["dominant"].make(labels, 3, stream(0, "x"), samples=6)
