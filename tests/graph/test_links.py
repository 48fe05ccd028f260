"""Links as lists and as matrices say the same, and take no more room than there are links."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from peermask.graph import build_graph, build_mixing, topologies
from peermask.graph.links import Links
from peermask.graph.sums import count_by_rows, count_in_turns, sum_in_turns, weighted_sum


def pairs_of(seed: int, agents: int, messages: int) -> Tensor:
    return torch.rand(agents, messages, generator=torch.Generator().manual_seed(seed)) < 0.4


def test_a_list_by_hand() -> None:
    """0 hears 1 and 2, 1 hears nobody, 2 hears 0."""
    links = Links.between(np.array([2, 0, 0]), np.array([0, 2, 1]), 3)
    assert links.starts.tolist() == [0, 2, 2, 3]
    assert links.senders.tolist() == [1, 2, 0]
    assert [senders.tolist() for senders in links] == [[1, 2], [], [0]]
    assert links.degree.tolist() == [2, 0, 1]
    assert links.most == 2
    assert links.pairs.int().tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert [(r.tolist(), s.tolist()) for r, s, _ in links.turns] == [([0, 2], [1, 0]), ([0], [2])]
    assert links.median(tensor([4.0, 2.0, 7.0])).tolist() == [3.0, 0.0, 7.0]
    assert links.by_receiver(tensor([5, 6, 7])).tolist() == [5, 5, 7]
    assert links.where(tensor([False, True, True])).pairs.int().tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert links.restrict(np.array([0, 2])).pairs.int().tolist() == [[0, 1], [0, 0], [1, 0]]


sizes = st.tuples(st.integers(0, 999), st.integers(1, 7), st.integers(1, 9))


@given(size=sizes, rows=st.slices(7) | st.lists(st.integers(0, 0), max_size=3).map(torch.LongTensor))
def test_some_receivers(size: tuple[int, int, int], rows: slice | Tensor) -> None:
    if isinstance(rows, slice) and rows.step is not None and rows.step < 0:
        return  # torch has none
    pairs = pairs_of(*size)
    some = Links.of(pairs).rows(rows)
    assert torch.equal(some.pairs, pairs[rows])


@given(size=sizes)
def test_pairs_give_what_lists_give(size: tuple[int, int, int]) -> None:
    pairs = pairs_of(*size)
    listed, paired = Links.of(pairs), Links.of(pairs)
    paired.is_paired = True  # as on a GPU
    values = torch.rand(pairs.shape, generator=torch.Generator().manual_seed(size[0]))
    assert torch.equal(listed.median(values[pairs]), paired.median(values))
    limit = listed.median(values[pairs])
    fewer = listed.where(values[pairs] <= listed.by_receiver(limit))
    assert torch.equal(fewer.pairs, paired.where(values <= paired.by_receiver(limit)).pairs)
    assert torch.equal(fewer.degree, fewer.pairs.sum(1))


@given(size=sizes)
def test_turns_add_what_rows_add(size: tuple[int, int, int]) -> None:
    pairs = pairs_of(*size)
    links = Links.of(pairs).weighted(np.linspace(0.1, 1.0, int(pairs.sum())))
    whole = links.weighted(np.arange(int(pairs.sum())) % 3 + 1.0)
    votes, values = pairs_of(size[0] + 1, size[2], 37), torch.randn(size[2], 37)
    for counted in (links.unweighted(), whole):
        times = counted.matrix.long() @ votes.long()
        assert torch.equal(count_in_turns(counted, votes, torch.uint8), times.to(torch.uint8))
        assert torch.equal(count_by_rows(counted, votes, torch.uint8), times.to(torch.uint8))
    assert torch.equal(whole.voters, whole.matrix.long().sum(1))
    torch.testing.assert_close(sum_in_turns(links, values), weighted_sum(links, values))
    torch.testing.assert_close(weighted_sum(links, values), links.matrix @ values)


def test_many_agents_take_room_for_their_links_alone() -> None:
    options = topologies["random-regular"].options.model_validate({"degree": 4})
    mixing = build_mixing(build_graph("random-regular", options, 20_000, 0), [1] * 20_000)
    arrays = (mixing.links.starts, mixing.links.senders, mixing.metropolis.senders, mixing.metropolis.strengths)
    assert sum(array.nbytes for array in arrays) < 200 * 20_000
    one = mixing.rows(slice(7, 8))
    votes = torch.ones(1, 3, dtype=torch.bool).expand(20_000, 3)
    assert one.count_open(votes).tolist() == [[4, 4, 4]]
    assert one.metropolis.strengths.tolist() == [np.float32(0.2)] * 5
    assert not mixing.links.to("meta").is_paired


def test_how_far_the_farthest_is() -> None:
    """A path of three, and two agents that nobody of it reaches."""
    pairs = np.array([(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3)])
    links = Links.between(pairs[:, 0], pairs[:, 1], 6)
    assert [links.distance_from(agent) for agent in range(6)] == [2, 1, 2, 1, 1, 0]
