"""What an agent holds: train and validation of its own part, and all test samples of its labels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peermask.data import Dataset, Split, partitions, share_out
from peermask.data.batches import batch_rows, smallest
from peermask.data.local import AllSamples
from peermask.data.normalisation import Range
from peermask.data.partition import Indices
from peermask.errors import DataError
from peermask.streams import raw_of_each, stream


def toy(train: int, test: int, classes: int = 4) -> Dataset:
    train_split, test_split = (Split(torch.zeros(n, 1, 1, 1), torch.arange(n) % classes) for n in (train, test))
    return Dataset("toy", train_split, test_split, tuple("abcdefgh"[:classes]), Range(high=1.0))


def shared(data: Dataset, agents: int, partition: str = "labels", seed: int = 0, **more: Any) -> AllSamples:
    options = partitions[partition].options(**({"labels_per_agent": 2} if partition == "labels" else {}))
    return share_out(data, partition, options, agents, seed, **more)


@given(
    seed=st.integers(0, 1000),
    agents=st.integers(1, 8),
    fraction=st.floats(0.05, 1),
    validation=st.floats(0, 0.6),
    partition=st.sampled_from(["labels", "iid"]),
)
def test_train_and_validation_are_disjoint_and_test_has_the_same_labels(
    seed: int, agents: int, fraction: float, validation: float, partition: str
) -> None:
    data = toy(160, 40)
    for own in shared(data, agents, partition, seed, fraction=fraction, validation=validation):
        assert len(own.train)
        assert not np.intersect1d(own.train, own.validation).size
        assert tuple(np.unique(data.train.targets.numpy()[own.train])) == own.labels
        assert (len(own.validation) > 0) == (validation > 0 and len(own.train) + len(own.validation) >= 2)
        assert set(own.test) == {k for k in range(40) if k % 4 in own.labels}


def test_a_fifth_of_every_count_is_kept() -> None:
    (own,) = shared(toy(40 + 3, 4), 1, "iid", fraction=0.2, validation=0)  # counts 11, 11, 11, 10 -> 2 each
    assert len(own.train) == 8
    (own,) = shared(toy(8, 4), 1, "iid", fraction=0.2, validation=0)  # counts 2 -> 1, not 0
    assert len(own.train) == 4


def test_a_tenth_is_held_out_in_proportion() -> None:
    data = toy(400, 4)
    (own,) = shared(data, 1, "iid")
    assert np.bincount(data.train.targets.numpy()[own.validation]).tolist() == [10, 10, 10, 10]
    assert len(own.train) == 360


def test_an_agents_samples_do_not_depend_on_the_validation_of_others() -> None:
    first, second = shared(toy(100, 8), 3), shared(toy(100, 8), 3)
    assert all(np.array_equal(a.train, b.train) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("more", "message"),
    [({"fraction": 0}, "data.fraction is 0"), ({"fraction": 1.5}, "data.fraction is 1.5"),
     ({"validation": 1.0}, "data.validation is 1.0"), ({"validation": -0.1}, "data.validation is -0.1")],
)  # fmt: skip
def test_shares_out_of_range_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        shared(toy(100, 8), 3, **more)


def test_an_agent_without_test_samples_is_named() -> None:
    with pytest.raises(DataError, match=r"agent \d+ holds labels .*, of which the test split has no sample"):
        shared(toy(100, 1), 8)
    with pytest.raises(DataError, match="agents is 0"):
        shared(toy(100, 8), 0)


def batch_of(samples: Indices, size: int, seed: int, agent: int, round: int, step: int = 0) -> Indices:
    own: Indices = batch_rows([samples], size, seed, [agent], round, step)[0]
    return own


@given(size=st.integers(1, 30), agent=st.integers(0, 5), round=st.integers(0, 50))
def test_a_batch_has_no_sample_twice(size: int, agent: int, round: int) -> None:
    samples = np.arange(100, 120, dtype=np.int64)
    batch = batch_of(samples, size, 1, agent, round)
    assert len(batch) == len(set(batch)) == min(size, 20)
    assert set(batch) <= set(samples)
    assert np.array_equal(batch, batch_of(samples, size, 1, agent, round))


def test_every_agent_round_and_step_has_its_own_batch() -> None:
    samples = np.arange(100, dtype=np.int64)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    batches = {tuple(batch_of(samples, 10, 0, *key)) for key in keys}
    assert len(batches) == 4


@given(keys=st.lists(st.integers(0, 9), min_size=1, max_size=60), count=st.integers(1, 70))
def test_the_smallest_keys_are_the_start_of_a_whole_stable_sort(keys: list[int], count: int) -> None:
    drawn = np.array(keys, dtype=np.uint64)
    assert smallest(drawn, count).tolist() == np.argsort(drawn, kind="stable")[:count].tolist()


def test_a_batch_is_the_start_of_its_streams_permutation() -> None:
    samples = np.arange(1000) * 3
    order = stream(4, "batch", 2, 7, 1).permutation(1000)
    assert np.array_equal(batch_of(samples, 64, 4, 2, 7, 1), samples[order[:64]])


def test_batches_stay_what_they_always_were() -> None:
    assert next(raw_of_each(7, "batch", [3], 11, 2, [2])).tolist() == [8259914978133992404, 15836112579426705437]
    assert batch_of(np.arange(500), 6, 7, 3, 11, 2).tolist() == [350, 456, 386, 56, 311, 219]


@given(counts=st.lists(st.integers(1, 600), min_size=1, max_size=5), size=st.integers(1, 200), round=st.integers(0, 9))
def test_batches_of_many_agents_are_those_of_each(counts: list[int], size: int, round: int) -> None:
    """An agent with fewer samples than the widest batch goes over its own again."""
    samples = [np.arange(count) * 7 + agent for agent, count in enumerate(counts)]
    agents = list(range(5, 5 + len(counts)))
    rows = batch_rows(samples, size, 3, agents, round, 1)
    assert rows.shape == (len(counts), min(size, max(counts)))
    for row, own, agent in zip(rows, samples, agents, strict=True):
        order = stream(3, "batch", agent, round, 1).permutation(len(own))[:size]
        assert row.tolist() == np.resize(own[order], rows.shape[1]).tolist()


def test_streams_of_many_agents_are_those_of_each() -> None:
    counts = [5, 0, 700, 1]
    drawn = raw_of_each(2, "any", [4, 0, 9, 4], 8, 1, counts)
    for agent, count, numbers in zip([4, 0, 9, 4], counts, drawn, strict=True):
        assert np.array_equal(numbers, stream(2, "any", agent, 8, 1).raw(count))


def test_threads_draw_side_by_side() -> None:
    samples = [np.arange(300)] * 4

    def drawn(round: int) -> list[list[int]]:
        rows: list[list[int]] = batch_rows(samples, 32, 0, range(4), round).tolist()
        return rows

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(drawn, range(60))) == [drawn(number) for number in range(60)]


def test_smallest_keys_are_found_where_too_few_are_small() -> None:
    keys = np.full(100, 2**64 - 1, np.uint64)
    keys[70] = 5
    assert smallest(keys, 3).tolist() == [70, 0, 1]


def test_samples_are_drawn_when_they_are_asked_for() -> None:
    samples = shared(toy(40, 8), 4)
    assert [len(own.train) for own in shared(toy(40, 8), 4)] == samples.sizes.tolist()
    last = samples[-1]
    assert list(samples._drawn) == [3]
    assert last is samples[3]
    assert [own.train.tolist() for own in samples[1:]] == [samples[i].train.tolist() for i in (1, 2, 3)]
