"""Mixing: how strongly an agent listens to each message it received. Building graphs is in topology.py.

Receivers are rows and senders columns, so the simulator (A = K = all agents) and a node (A = 1, K = what it
heard) run the same code; sums.py adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.errors import GraphError
from peermask.graph.links import Integers, Links
from peermask.graph.sums import count_votes, sum_of_all, weighted_sum
from peermask.graph.topology import AGENTS_NAMED, Graph

# Shapes: A receivers, K received messages, P weights


@dataclass(frozen=True, eq=False)
class Mixing:
    """Weights of A receivers for K messages, the argument of `Algorithm.fuse`.

    Attributes:
        links: The messages that each receiver hears, without its own; `for senders in mixing.links` gives their rows.
        metropolis: Those and its own, with weights 1 / (1 + max(d_i, d_j)) on links, the rest of 1 on its own.
        own: [A] the row of each receiver's own message.
        shares: [K] float32: p_j, the sender's share of all training samples; sums to 1.
        own_weight: Of the own message, if messages are weighted by age (graph/mixing.py): links then have whole
        weights.
        most: The largest count that any receiver can have in any round; 0: by the links.
        newest: How often a new message counts at most, if messages are weighted by age.

    Examples:
        >>> import networkx, torch
        >>> from peermask.graph import build_mixing
        >>> mixing = build_mixing(networkx.path_graph(3), [10, 10, 20])  # 0 - 1 - 2, with their samples
        >>> mixing.degree
        tensor([1, 2, 1])
        >>> mixing.closed_mean(torch.tensor([[1.0], [2.0], [6.0]])).flatten()
        tensor([1.5000, 3.0000, 4.0000])
        >>> mixing.count_open(torch.tensor([[True], [True], [False]])).flatten()
        tensor([1, 1, 1], dtype=torch.uint8)
    """

    links: Links
    metropolis: Links
    own: Integers
    shares: Tensor
    own_weight: int = 1
    most: int = 0
    newest: int = 1

    @cached_property
    def degree(self) -> Tensor:
        """d_i, the number of neighbours heard."""
        return self.links.degree  # [A] int64

    @cached_property
    def voters(self) -> Tensor:
        """Divisor of the counts of `count_open`: neighbours heard, or the sum of their weights."""
        return self.links.voters  # [A] int64

    @cached_property
    def closed_voters(self) -> Tensor:
        """The same with the receiver itself."""
        return self.voters + self.own_weight  # [A] int64

    @cached_property
    def closed(self) -> Links:
        """Neighbours and the receiver itself."""
        if self.links.weights is None:
            return self.metropolis.unweighted()
        weights = np.full(len(self.metropolis.senders), float(self.own_weight))
        weights[~self._is_own] = self.links.weights  # in the same order
        return self.metropolis.weighted(weights)

    @property
    def _is_own(self) -> NDArray[np.bool_]:
        """Mark the closed links that carry a receiver's own message."""
        is_own: NDArray[np.bool_] = self.metropolis.senders == self.own[self.metropolis.receivers]
        return is_own

    @cached_property
    def count_dtype(self) -> torch.dtype:
        """The smallest integer type that holds the largest count."""
        return self.count_dtype_with(0)

    def count_dtype_with(self, own_votes: int) -> torch.dtype:
        """The same where an agent's own message counts as so many further ones."""
        most = (self.most or self.links.most + 1) + own_votes * self.newest
        return torch.uint8 if most <= 255 else torch.int16 if most < 2**15 else torch.int32

    def count_open(self, votes: Tensor) -> Tensor:
        """Σ_{j∈N_i} m_j, as exact integers; where messages weigh by their age, Σ a_j m_j."""
        return count_votes(self.links, votes, self.count_dtype)  # [K, P] bool -> [A, P]

    def count_closed(self, votes: Tensor) -> Tensor:
        """Σ_{j∈N_i∪{i}} m_j, as exact integers."""
        return count_votes(self.closed, votes, self.count_dtype)  # [A, P]

    def sum_closed(self, values: Tensor) -> Tensor:
        """Σ_{j∈N_i∪{i}} x_j; where messages weigh by their age, Σ a_j x_j."""
        return weighted_sum(self.closed, values)  # [A, P]

    def open_mean(self, values: Tensor) -> Tensor:
        """(1/d_i) Σ_{j∈N_i} x_j; 0 for an agent without neighbours."""
        return weighted_sum(self.links, values).div_(self.voters.clamp(min=1).unsqueeze(1))  # [A, P]

    def closed_mean(self, values: Tensor) -> Tensor:
        """(1/(d_i+1)) Σ_{j∈N_i∪{i}} x_j."""
        return self.sum_closed(values).div_(self.closed_voters.unsqueeze(1))  # [A, P]

    def metropolis_mean(self, values: Tensor) -> Tensor:
        """Σ_j W_ij x_j with Metropolis-Hastings weights W (on links that go both ways symmetric, doubly stochastic)."""
        return weighted_sum(self.metropolis, values)  # [A, P]

    def server_mean(self, values: Tensor) -> Tensor:
        """Σ_j p_j x_j over all messages: what a server that hears all agents would send back."""
        return self._same_for_all(sum_of_all(self.shares, values))  # [A, P]

    def uniform_server_mean(self, values: Tensor) -> Tensor:
        """(1/K) Σ_j x_j over all messages."""
        every = torch.ones(len(values), dtype=values.dtype, device=values.device)
        return self._same_for_all(sum_of_all(every, values).div_(len(values)))  # [A, P]

    def to(self, device: torch.device | str) -> Mixing:
        """Move the tensors to a device."""
        return replace(
            self, links=self.links.to(device), metropolis=self.metropolis.to(device), shares=self.shares.to(device)
        )

    def rows(self, index: slice | Tensor) -> Mixing:
        """The mixing of some receivers, which still see all K messages."""
        own = self.own[index if isinstance(index, slice) else index.cpu().numpy()]
        return replace(self, links=self.links.rows(index), metropolis=self.metropolis.rows(index), own=own)

    def restrict(self, columns: Tensor) -> Mixing:
        """The mixing when only these messages came, in ascending order. The weight of the others goes to the agent's
        own, and shares are renormalised, so weights still sum to 1."""
        came = columns.cpu().numpy()
        own = np.searchsorted(came, self.own)
        if not np.array_equal(came[own.clip(max=len(came) - 1)], self.own):
            raise GraphError("a receiver's own message cannot be left out of what it mixes")
        before, metropolis = self.metropolis, self.metropolis.restrict(came)
        missing = ~np.isin(before.senders, came)
        lost = np.bincount(before.receivers[missing], before.strengths[missing].astype(np.float64), len(before))  # [A]
        is_own = metropolis.senders == own[metropolis.receivers]  # [E]
        weights = metropolis.strengths + is_own * lost[metropolis.receivers]
        shares = self.shares[columns].double()
        return Mixing(self.links.restrict(came), metropolis.weighted(weights), own, (shares / shares.sum()).float())

    def weigh_by_age(self, weights: Sequence[int], own: int, most: int) -> Mixing:
        """The mixing of one receiver whose messages weigh by their age: `weights` of what it hears, `own` of its own,
        all whole and above 0; no count of any receiver is ever above `most`.

        Common factors go: where all is new, this is the mixing without ages. Of a Metropolis weight the age takes a
        part, a_j / a_i, which its own message gets.
        """
        common = gcd(own, *weights)
        new = all(weight == own for weight in weights)
        links = self.links if new else self.links.weighted(np.array(weights, np.float64) / common)
        metropolis, is_own = self.metropolis.strengths.astype(np.float64), self._is_own
        metropolis[~is_own] *= np.array(weights, np.float64) / own
        metropolis[is_own] = 1.0 - metropolis[~is_own].sum()
        closed = self.metropolis if new else self.metropolis.weighted(metropolis)
        return replace(self, links=links, metropolis=closed, own_weight=own // common, most=most, newest=own)

    def _same_for_all(self, row: Tensor) -> Tensor:
        return row.expand(len(self.links), -1)  # [1, P] -> [A, P]


def build_mixing(graph: Graph | Links, shares: Sequence[float] | Integers) -> Mixing:
    """The mixing of all agents (A = K = N); `shares` are their sample counts or shares of them."""
    links = graph if isinstance(graph, Links) else links_of(graph)
    agents = len(links)
    counts = np.asarray(shares, dtype=np.float64)  # [N]
    if counts.shape != (agents,) or not np.isfinite(counts).all() or (counts <= 0).any():
        raise GraphError(
            f"{agents} agents need one share of the samples above 0 each, not {list(shares)[:AGENTS_NAMED]}"
        )
    everyone, degree = np.arange(agents), np.diff(links.starts)
    weights = 1.0 / (1.0 + np.maximum(degree[links.receivers], degree[links.senders]))  # [E]
    rest = 1.0 - np.bincount(links.receivers, weights, agents)  # [N]
    closed = Links.between(
        np.concatenate([links.receivers, everyone]), np.concatenate([links.senders, everyone]), agents,
        np.concatenate([weights, rest]),
    )  # fmt: skip
    return Mixing(links, closed, everyone, torch.from_numpy(counts / counts.sum()).float())


def links_of(graph: Graph) -> Links:
    """The links of a graph, both ways along every edge."""
    edges = np.array(graph.edges, np.int64).reshape(-1, 2)
    both = np.concatenate([edges, edges[:, ::-1]])
    return Links.between(both[:, 0], both[:, 1], graph.number_of_nodes())


# How much a message counts by its age. Weights are whole numbers, so that votes stay counts, and a node's fusion equals
# the simulator's bit for bit. The agent's own message counts as often as a new one.
#
# A message that is older than there are weights has expired, and is not used: an agent that died, or that repeats its
# first message, has no influence after some rounds.
#
# Where agents play the same round, a message of round l is k - l rounds old in round k. That of an agent that is
# missing counts half as much each round, for four rounds: one that got lost hardly matters (benchmarks/deaths.py).
#
# In asynchronous runs an agent may be slow and alive, so the age is how far it is behind, in tenths of the receiver's
# rounds and ten: ⌊10 max(0, k − l) / (k + 10)⌋, 0 to 9. A message of the round before is always new. An agent six
# rounds behind in the tenth round has learned half of what its receiver has, in the hundredth nearly all.
#
# If all messages of a round together count less than a quarter of a new one, none is used: an agent whose only
# neighbour is far slower would follow a model that has learned next to nothing.

MISSING = (16, 8, 4, 2, 1)  # how often a message counts by the rounds that its sender has missed
TENTHS = 10  # distinct ages in asynchronous runs, and rounds in which there are hardly any
LEAST = 4  # messages that together count less than this part of a new one are not used


@dataclass(frozen=True)
class Ages:
    """Weights of messages by age."""

    weights: tuple[int, ...]  # by age; older messages have expired
    most: int  # that any agent can count in any round
    in_rounds: bool = False  # the age, not in tenths of the receiver's rounds

    @classmethod
    def of(cls, weights: tuple[int, ...], mixing: Mixing) -> Ages:
        """Make the weights of an asynchronous run; `mixing` is that of all agents."""
        return cls(weights, max(weights) * (mixing.links.most + 1))

    @classmethod
    def of_missing(cls, mixing: Mixing) -> Ages:
        """Make the ages of agents that play the same round; `mixing` is that of all agents."""
        return cls(MISSING, max(MISSING) * (mixing.links.most + 1), in_rounds=True)

    def weight(self, round: int, number: int) -> int:
        """Return the weight of a message of round `number` in a round of its receiver."""
        late = max(0, round - number)
        age = late if self.in_rounds else TENTHS * late // (round + TENTHS)
        return self.weights[age] if age < len(self.weights) else 0

    def weigh(self, mixing: Mixing, round: int, heard: Mapping[int, int]) -> tuple[list[int], Mixing]:
        """The senders whose messages an agent mixes in a round, itself included, in order, and how: [1, K].

        `mixing` is the agent's row [1, N]; `heard` has the round of each neighbour's message.
        """
        own = int(mixing.own[0])
        counts = {j: self.weight(round, number) for j, number in heard.items()}
        if LEAST * sum(counts.values()) < self.weights[0]:
            counts = {}
        columns = sorted([own, *(j for j, count in counts.items() if count)])  # [K]
        weights = [counts[j] for j in columns if j != own]
        return columns, mixing.restrict(torch.tensor(columns)).weigh_by_age(weights, self.weights[0], self.most)
