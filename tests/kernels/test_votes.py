"""The kernel that counts votes, on every device, against the loop over links."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peermask.graph import build_mixing
from peermask.graph.links import Links
from peermask.graph.sums import FEW, count_by_rows, count_votes_triton


def drawn(agents: int, senders: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Who is listened to, and what all say."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(agents, senders, generator=generator) < 0.5,
        torch.rand(senders, width, generator=generator) < 0.3,
    )


def agrees(chosen: Tensor, votes: Tensor, dtype: torch.dtype = torch.uint8) -> None:
    counted = count_votes_triton(chosen, votes, dtype)
    assert counted.dtype == dtype
    assert torch.equal(counted.cpu(), count_by_rows(Links.of(chosen.cpu()), votes.cpu(), dtype))


@pytest.mark.usefixtures("interpreted")
@given(
    agents=st.integers(1, 5) | st.just(FEW + 1),
    senders=st.integers(1, 70),
    width=st.sampled_from([1, 37, 300, 512, 514]),
    seed=st.integers(0, 99),
)
@settings(max_examples=15)
def test_it_is_a_count(agents: int, senders: int, width: int, seed: int) -> None:
    agrees(*drawn(agents, senders, width, seed))


LARGE = [(20, 20, 100_003), (20, 20, 1_227_328), (33, 70, 5_000)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("shape", [(3, 40, 37), *(pytest.param(one, marks=pytest.mark.large) for one in LARGE)])
def test_every_type_of_count(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    chosen, votes = drawn(*shape)
    agrees(chosen.to(device), votes.to(device), dtype)


@pytest.mark.parametrize("agents", [3, FEW + 100])
def test_counts_of_thousands_are_exact(device: torch.device, agents: int) -> None:
    votes = torch.ones(2_100, 3, dtype=torch.bool, device=device)
    votes[7, 1] = False
    chosen = torch.ones(agents, len(votes), dtype=torch.bool, device=device)
    chosen[-1] = False
    agrees(chosen, votes, torch.int16)


@pytest.mark.parametrize("width", [6, 7])
def test_the_largest_counts_of_a_byte(device: torch.device, width: int) -> None:
    chosen = torch.ones(2, 256, dtype=torch.bool, device=device)
    votes = torch.ones(256, width, dtype=torch.bool, device=device)
    chosen[:, 0], votes[1:, ::2], votes[5, 1] = False, False, False
    agrees(chosen, votes)
    assert count_votes_triton(chosen, votes, torch.uint8)[0, :4].tolist() == [0, 254, 0, 255]


@pytest.mark.usefixtures("interpreted")
def test_nobody_may_be_heard() -> None:
    alone = build_mixing(nx.empty_graph(1), [1])
    votes = torch.ones(1, 37, dtype=torch.bool)
    assert not count_votes_triton(alone.links.pairs, votes, torch.uint8).any()
    assert bool((count_votes_triton(alone.closed.pairs, votes, torch.uint8) == 1).all())


def test_rows_and_columns_may_lie_apart(device: torch.device) -> None:
    chosen, votes = (one.to(device) for one in drawn(6, 9, 600))
    agrees(chosen[::2], votes[:, :300])
    agrees(chosen, votes[:, 1:301])  # two bytes that are no number
    agrees(chosen, drawn(6, 9, 599)[1].to(device)[:, :300])
    agrees(chosen[:, ::3], votes[::3, ::2])
    agrees(chosen[:, :4], votes[:1].expand(4, -1))
