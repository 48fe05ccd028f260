"""Links: which of K messages each of A receivers hears, and how strongly; memory grows with links, not with pairs.

The senders of each receiver are listed one receiver after another, so 65,535 agents on a ring are 131,070 numbers. A
GPU's kernels take a matrix of pairs instead; a stack of agents there has one where that is small, or about as full as
the list (`is_paired`). What is known of every link is then a value for each pair [A, K], else one for each entry of the
list [E]; `by_receiver`, `where` and `median` work with either.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Shapes: A receivers, K messages, E links

Integers: TypeAlias = NDArray[np.int64]
CPU = torch.device("cpu")
PAIRS_AS_MATRIX = 2**20  # pairs that a GPU has as a matrix in any case
PAIRS_PER_LINK = 16  # pairs a link beyond which it has none


class Links:
    """Directed links, in the order of receivers, and for each in the order of senders."""

    def __init__(
        self,
        starts: Integers,  # [A + 1]
        senders: Integers,  # [E]
        messages: int,
        weights: NDArray[np.float32] | None = None,  # [E]; None: 1 each
        device: torch.device = CPU,
    ) -> None:
        self.starts, self.senders, self.weights = starts, senders, weights
        self.agents, self.messages, self.device = len(starts) - 1, messages, device  # A, K
        room = max(PAIRS_AS_MATRIX, PAIRS_PER_LINK * len(senders))
        self.is_paired = device.type != "cpu" and self.agents * messages <= room

    @classmethod
    def of(cls, pairs: Tensor) -> Links:
        """Make links from a matrix [A, K] bool."""
        links = cls.__new__(cls)
        links.pairs, links.weights, links.device = pairs, None, pairs.device
        links.agents, links.messages = pairs.shape
        links.is_paired = pairs.device.type != "cpu"
        return links

    @classmethod
    def between(
        cls, receivers: Integers, senders: Integers, agents: int, weights: NDArray[np.float64] | None = None
    ) -> Links:
        """Make links from pairs in any order, each once, among N agents (A = K = N)."""
        order = np.lexsort((senders, receivers))
        counts = np.bincount(receivers, minlength=agents)
        ranked = None if weights is None else weights[order].astype(np.float32)
        return cls(np.concatenate([[0], np.cumsum(counts)]), senders[order], agents, ranked)

    def __len__(self) -> int:
        return self.agents

    def __iter__(self) -> Iterator[Tensor]:
        """The senders of each receiver, [d_i] int64 on the device."""
        return iter(torch.from_numpy(self.senders).to(self.device).split(np.diff(self.starts).tolist()))

    # A matrix that was found on a GPU is listed only if asked for: that waits for the GPU.

    @cached_property
    def starts(self) -> Integers:
        """[A + 1] where each receiver's senders begin."""
        return np.concatenate([[0], np.cumsum(self.pairs.sum(1).cpu().numpy())])

    @cached_property
    def senders(self) -> Integers:
        """[E]"""
        return self.pairs.nonzero()[:, 1].cpu().numpy()

    @cached_property
    def receivers(self) -> Integers:
        """[E]"""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @cached_property
    def degree(self) -> Tensor:
        """[A] int64: how many each receiver hears."""
        if self.is_paired and "starts" not in self.__dict__:
            return self.pairs.sum(1)
        return torch.from_numpy(np.diff(self.starts)).to(self.device)

    @cached_property
    def voters(self) -> Tensor:
        """[A] int64: how many each receiver hears, or the sum of their weights where those are whole numbers."""
        if self.weights is None:
            return self.degree
        total = np.bincount(self.receivers, self.weights, len(self)).astype(np.int64)
        return torch.from_numpy(total).to(self.device)

    @property
    def strengths(self) -> NDArray[np.float32]:
        """[E] weights, or 1 each."""
        return np.ones(len(self.senders), np.float32) if self.weights is None else self.weights

    @property
    def most(self) -> int:
        """The largest degree."""
        return int(np.diff(self.starts).max())

    def distance_from(self, agent: int) -> int:
        """Count the links to the farthest agent, of those that can be reached (A = K)."""
        reached, edge, steps = np.zeros(len(self), np.bool_), np.array([agent]), -1
        while edge.size:
            steps += 1
            reached[edge] = True
            heard = np.concatenate([self.senders[self.starts[i] : self.starts[i + 1]] for i in edge])
            edge = np.unique(heard[~reached[heard]])
        return steps

    @cached_property
    def pairs(self) -> Tensor:
        """[A, K] bool"""
        pairs = np.zeros((len(self), self.messages), np.bool_)
        pairs[self.receivers, self.senders] = True
        return torch.from_numpy(pairs).to(self.device)

    @cached_property
    def matrix(self) -> Tensor:
        """[A, K] float32: weights on links, 0 elsewhere."""
        matrix = np.zeros((len(self), self.messages), np.float32)
        matrix[self.receivers, self.senders] = self.strengths
        return torch.from_numpy(matrix).to(self.device)

    @cached_property
    def turns(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The first sender of every receiver, the second of all that have one, and so on: receivers, senders, weights.

        All links in as few steps as possible, each receiver's own in their order."""
        place = np.arange(len(self.senders)) - self.starts[self.receivers]  # [E] of each link among its receiver's
        order = np.argsort(place, kind="stable")
        known = (self.receivers, self.senders, self.strengths)
        columns = [torch.from_numpy(each[order]).to(self.device) for each in known]
        counts = np.bincount(place).tolist()
        return list(zip(*(column.split(counts) for column in columns), strict=True)) if counts else []

    @cached_property
    def out_degree(self) -> Integers:
        """[K]: how many hear each message."""
        return np.bincount(self.senders, minlength=self.messages)

    @cached_property
    def lists(self) -> list[list[int]]:
        """The senders of each receiver, for a loop."""
        return [senders.tolist() for senders in np.split(self.senders, self.starts[1:-1])]

    @cached_property
    def messages_heard(self) -> tuple[Integers, Integers]:
        """The messages that any receiver hears, each once, and which of them each link carries [E]."""
        messages, which = np.unique(self.senders, return_inverse=True)
        return messages, which

    def edges(self) -> list[list[int]]:
        """Pairs with a link, in one direction or both: the smaller number first, in order, each pair once."""
        ends = np.sort(np.stack([self.receivers, self.senders], 1), axis=1)
        edges: list[list[int]] = np.unique(ends, axis=0).tolist()
        return edges

    def rows(self, index: slice | Tensor) -> Links:
        """The links of some receivers, which still see all K messages."""
        if isinstance(index, slice) and index.step in (None, 1):
            first, end, _ = index.indices(len(self))
            starts = self.starts[first : max(first, end) + 1]
            chosen: slice | Integers = slice(int(starts[0]), int(starts[-1]))
            starts = starts - starts[0]
        else:
            rows = np.arange(len(self))[index if isinstance(index, slice) else index.cpu().numpy()]
            spans = [np.arange(self.starts[row], self.starts[row + 1]) for row in rows]
            chosen = np.concatenate([np.empty(0, np.int64), *spans])
            starts = np.cumsum([0, *map(len, spans)])
        weights = None if self.weights is None else self.weights[chosen]
        return Links(starts, self.senders[chosen], self.messages, weights, self.device)

    def restrict(self, columns: Integers) -> Links:
        """The links that carry these messages, given in ascending order, which are then all there are."""
        new = np.searchsorted(columns, self.senders).clip(max=max(0, len(columns) - 1))
        came = columns[new] == self.senders if len(columns) else np.zeros(len(new), np.bool_)
        fewer = self._fewer(came)
        return Links(fewer.starts, new[came], len(columns), fewer.weights, self.device)

    def to(self, device: torch.device | str) -> Links:
        return Links(self.starts, self.senders, self.messages, self.weights, torch.device(device))

    def unweighted(self) -> Links:
        return Links(self.starts, self.senders, self.messages, None, self.device)

    def weighted(self, weights: NDArray[np.floating[Any]]) -> Links:
        return Links(self.starts, self.senders, self.messages, weights.astype(np.float32), self.device)

    def by_receiver(self, values: Tensor) -> Tensor:
        """Values of receivers [A, ...] on every link: [E, ...], or [A, 1, ...] where links are pairs."""
        return values[:, None] if self.is_paired else values[self._on_device(self.receivers)]

    def where(self, chosen: Tensor) -> Links:
        """The links for which this holds."""
        if self.is_paired:
            return Links.of(self.pairs & chosen)
        return self._fewer(chosen.cpu().numpy())

    def median(self, values: Tensor) -> Tensor:
        """Median over each receiver's links, the mean of the middle two: [A]; 0 without links."""
        if self.is_paired:
            ranked = values.masked_fill(~self.pairs, torch.inf).sort(dim=1).values  # [A, K]
            firsts = torch.zeros_like(self.degree)
        else:
            by_value = values.argsort(stable=True)
            receivers = self._on_device(self.receivers)[by_value]
            ranked = values[by_value[receivers.argsort(stable=True)]]  # [E], each receiver's in order
            firsts = self._on_device(self.starts[:-1])
        if not ranked.numel():
            return torch.zeros(len(self), dtype=values.dtype, device=self.device)
        lower, upper = firsts + (self.degree - 1).clamp(min=0) // 2, firsts + self.degree // 2
        middle = torch.stack([lower, upper], 1).clamp(max=ranked.shape[-1] - 1)  # [A, 2]
        found = ranked.gather(1, middle) if self.is_paired else ranked[middle]
        return torch.where(self.degree > 0, found.mean(1), 0.0)

    def _fewer(self, chosen: NDArray[np.bool_]) -> Links:
        counts = np.bincount(self.receivers[chosen], minlength=len(self))
        starts = np.concatenate([[0], np.cumsum(counts)])
        weights = None if self.weights is None else self.weights[chosen]
        return Links(starts, self.senders[chosen], self.messages, weights, self.device)

    def _on_device(self, index: Integers) -> Tensor:
        return torch.from_numpy(index).to(self.device)
