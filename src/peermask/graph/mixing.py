"""Mixing: how strongly an agent listens to each message it received. Building graphs is in topology.py.

Receivers are rows and senders columns, so the simulator (A = K = all agents) and a node (A = 1, K = what it
heard) run the same code. Votes are counted before anything is divided: counts are whole numbers, so they are
the same for one row or for all. On a CPU real values, too, are added sender by sender in column order, which
makes a row's result independent of the other rows and of columns it does not listen to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from peermask.errors import GraphError
from peermask.graph.topology import Graph
from peermask.kernels import by_kernels
from peermask.kernels.votes import count_votes_triton

# Shapes: A receivers, K received messages, P weights
BLOCK = 2**26  # elements of a matmul's temporary operands: 128 MB in half precision
HALF_EXACT = 2048  # whole numbers up to here are exact in half precision


@dataclass(frozen=True, eq=False)
class Mixing:
    links: Tensor  # [A, K] bool: the receiver hears that sender; never its own message
    own: Tensor  # [A, K] bool: the receiver's own message, one per row
    metropolis: Tensor  # [A, K] float32: 1 / (1 + max(d_i, d_j)) on links, the rest of 1 on own
    shares: Tensor  # [K] float32: p_j, the sender's share of all training samples; sums to 1

    @cached_property
    def degree(self) -> Tensor:
        """d_i, the number of neighbours heard."""
        return self.links.sum(1)  # [A] int64

    @cached_property
    def closed(self) -> Tensor:
        """Neighbours and the receiver itself."""
        return self.links | self.own  # [A, K] bool

    @cached_property
    def count_dtype(self) -> torch.dtype:
        """The smallest integer type that holds the largest count."""
        most = int(self.degree.max()) + 1
        return torch.uint8 if most <= 255 else torch.int16 if most < 2**15 else torch.int32

    def count_open(self, votes: Tensor) -> Tensor:
        """Σ_{j∈N_i} m_j, as exact integers."""
        return count_votes(self.links, votes, self.count_dtype)  # [A, K], [K, P] bool -> [A, P]

    def count_closed(self, votes: Tensor) -> Tensor:
        """Σ_{j∈N_i∪{i}} m_j, as exact integers."""
        return count_votes(self.closed, votes, self.count_dtype)  # [A, P]

    def sum_closed(self, values: Tensor) -> Tensor:
        """Σ_{j∈N_i∪{i}} x_j."""
        return weighted_sum(self.closed.to(values.dtype), values)  # [A, P]

    def open_mean(self, values: Tensor) -> Tensor:
        """(1/d_i) Σ_{j∈N_i} x_j; 0 for an agent without neighbours."""
        total = weighted_sum(self.links.to(values.dtype), values)  # [A, P]
        return total.div_(self.degree.clamp(min=1).unsqueeze(1))

    def closed_mean(self, values: Tensor) -> Tensor:
        """(1/(d_i+1)) Σ_{j∈N_i∪{i}} x_j."""
        return self.sum_closed(values).div_((self.degree + 1).unsqueeze(1))  # [A, P]

    def metropolis_mean(self, values: Tensor) -> Tensor:
        """Σ_j W_ij x_j with Metropolis-Hastings weights W (symmetric, doubly stochastic)."""
        return weighted_sum(self.metropolis, values)  # [A, P]

    def server_mean(self, values: Tensor) -> Tensor:
        """Σ_j p_j x_j over all messages: what a server that hears everybody would send back."""
        return self._same_for_all(weighted_sum(self.shares.unsqueeze(0), values))  # [A, P]

    def uniform_server_mean(self, values: Tensor) -> Tensor:
        """(1/K) Σ_j x_j over all messages."""
        every = torch.ones(1, len(values), dtype=values.dtype, device=values.device)
        return self._same_for_all(weighted_sum(every, values).div_(len(values)))  # [A, P]

    def to(self, device: torch.device | str) -> Mixing:
        return Mixing(self.links.to(device), self.own.to(device), self.metropolis.to(device), self.shares.to(device))

    def rows(self, index: slice | Tensor) -> Mixing:
        """The mixing of some receivers, who still see all K messages."""
        return Mixing(self.links[index], self.own[index], self.metropolis[index], self.shares)

    def restrict(self, columns: Tensor) -> Mixing:
        """The mixing when only these messages came. The weight of the others goes to the agent's own, and
        shares are renormalised, so weights still sum to 1."""
        own = self.own[:, columns]  # [A, C]
        if not bool(own.any(1).all()):
            raise GraphError("a receiver's own message cannot be left out of what it mixes")
        lost = self.metropolis.double().index_fill(1, columns, 0).sum(1, keepdim=True)  # [A, 1]
        metropolis = self.metropolis[:, columns] + own * lost  # [A, C]
        shares = self.shares[columns].double()
        return Mixing(self.links[:, columns], own, metropolis.float(), (shares / shares.sum()).float())

    def _same_for_all(self, row: Tensor) -> Tensor:
        return row.expand(self.links.shape[0], -1)  # [1, P] -> [A, P]


def build_mixing(graph: Graph, shares: Sequence[float]) -> Mixing:
    """The mixing of all agents (A = K = N); `shares` are their sample counts or shares of them."""
    agents = graph.number_of_nodes()
    held = np.asarray(shares, dtype=np.float64)  # [N]
    if held.shape != (agents,) or not np.isfinite(held).all() or (held <= 0).any():
        raise GraphError(f"{agents} agents need one share of the samples above 0 each, not {list(shares)}")
    links = np.zeros((agents, agents), dtype=np.bool_)  # [N, N]
    for i, j in graph.edges:
        links[i, j] = links[j, i] = True
    degree = links.sum(1)
    metropolis = links / (1.0 + np.maximum(degree[:, None], degree[None, :]))  # [N, N]
    metropolis += np.diag(1 - metropolis.sum(1))
    return Mixing(
        links=torch.from_numpy(links),
        own=torch.eye(agents, dtype=torch.bool),
        metropolis=torch.from_numpy(metropolis).float(),
        shares=torch.from_numpy(held / held.sum()).float(),
    )


def count_votes(chosen: Tensor, votes: Tensor, dtype: torch.dtype) -> Tensor:
    """How many of the chosen messages keep each weight, as exact integers: [A, K], [K, P] bool -> [A, P]."""
    if by_kernels(votes):
        return count_votes_triton(chosen, votes, dtype)
    if votes.device.type == "cpu":
        return count_by_rows(chosen, votes, dtype)
    exact = torch.half if votes.shape[0] <= HALF_EXACT else torch.float32
    return matmul_in_blocks(chosen.to(exact), votes, dtype)


def count_by_rows(chosen: Tensor, votes: Tensor, dtype: torch.dtype) -> Tensor:
    """Adds only the rows that are listened to, a byte per vote: on a CPU several times faster than a gather
    and a sum, and far faster than a matmul."""
    bytes_ = votes.view(torch.uint8)  # [K, P]
    out = torch.zeros(len(chosen), votes.shape[1], dtype=dtype)  # [A, P]
    for total, senders in zip(out, chosen, strict=True):
        for j in senders.nonzero().flatten().tolist():
            total.add_(bytes_[j])
    return out


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """`weights @ values`, [A, K] @ [K, P] -> [A, P]."""
    if values.device.type != "cpu":
        return product_in_full(weights.to(values.dtype), values)
    out = torch.zeros(len(weights), values.shape[1], dtype=values.dtype)  # [A, P]
    for total, row in zip(out, weights, strict=True):
        for j in row.nonzero().flatten().tolist():
            total.add_(values[j], alpha=float(row[j]))
    return out


def product_in_full(weights: Tensor, values: Tensor) -> Tensor:
    """`weights @ values` in full float32, also where the run computes gradients in TF32.

    TF32 has 10 mantissa bits: a mean of models would lose every step smaller than a thousandth of a weight.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return weights @ values
    finally:
        torch.set_float32_matmul_precision(before)


def matmul_in_blocks(weights: Tensor, values: Tensor, dtype: torch.dtype, block: int = BLOCK) -> Tensor:
    """`weights @ values` over blocks of columns, so that converting the values takes a bounded space."""
    out = torch.empty(len(weights), values.shape[1], dtype=dtype, device=values.device)  # [A, P]
    for columns in column_blocks(values.shape[1], max(1, block // sum(weights.shape))):
        out[:, columns] = (weights @ values[:, columns].to(weights.dtype)).to(dtype)
    return out


def column_blocks(width: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, width, step))
