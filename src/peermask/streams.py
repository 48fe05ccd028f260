"""Random streams keyed by what they are for, so no result depends on the order in which things are drawn.

Only the raw 64-bit output of Philox is taken from numpy; every transform is written out here. numpy guarantees
the former in all versions but not the latter, and here the seed *is* the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Stream:
    """An endless sequence of random numbers with its own position."""

    source: np.random.Philox

    def raw(self, count: int) -> NDArray[np.uint64]:
        return self.source.random_raw(count)  # [count]

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Evenly spread over [0, 1), 53 bits each."""
        return uniform_of(self.raw(count))  # [count]

    def signs(self, count: int) -> NDArray[np.float32]:
        """+1 or -1, by the top bit."""
        top = (self.raw(count) >> np.uint64(63)).astype(np.float32)
        return np.float32(1) - np.float32(2) * top  # [count]

    def normal(self, count: int) -> NDArray[np.float64]:
        """Standard normal by Box and Muller: sqrt(-2 ln u) cos(2 pi v) with u in (0, 1]."""
        pairs = self.uniform(2 * count).reshape(2, count)
        radius = np.sqrt(-2.0 * np.log1p(-pairs[0]))
        points: NDArray[np.float64] = radius * np.cos(2.0 * np.pi * pairs[1])
        return points  # [count]

    def permutation(self, count: int) -> NDArray[np.int64]:
        """A shuffle of 0..count-1: the order of random keys."""
        return np.argsort(self.raw(count), kind="stable")  # [count]

    def gamma(self, shape: float, count: int) -> NDArray[np.float64]:
        """Gamma(shape, 1) by Marsaglia and Tsang's squeeze, repeated until each entry is accepted."""
        boost = self.uniform(count) ** (1.0 / shape) if shape < 1 else np.ones(count)
        d = (shape + 1.0 if shape < 1 else shape) - 1.0 / 3.0
        c = 1.0 / np.sqrt(9.0 * d)
        out = np.full(count, np.nan)
        while (todo := np.flatnonzero(np.isnan(out))).size:
            x = self.normal(todo.size)
            v = (1.0 + c * x) ** 3
            u = 1.0 - self.uniform(todo.size)
            with np.errstate(invalid="ignore", divide="ignore"):
                accept = (v > 0) & (np.log(u) < 0.5 * x**2 + d - d * v + d * np.log(v))
            out[todo[accept]] = d * v[accept]
        return out * boost  # [count]


def uniform_of(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Evenly spread over [0, 1), 53 bits each."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def stream(seed: int, purpose: str, agent: int = 0, round: int = 0, step: int = 0) -> Stream:
    """The stream of one purpose: the same arguments give the same numbers on every machine."""
    return Stream(np.random.Philox(key=int.from_bytes(_key(seed, purpose, agent, round, step), "little")))


def raw_of_each(
    seed: int, purpose: str, agents: Sequence[int], round: int, step: int, counts: Sequence[int]
) -> Iterator[NDArray[np.uint64]]:
    """The first numbers of the streams of several agents.

    One generator is given a new key for each: creating one takes longer than drawing a batch.
    """
    source = np.random.Philox(key=0)  # of this call alone: other threads draw at the same time
    state = source.state
    for agent, count in zip(agents, counts, strict=True):
        state["state"]["key"] = np.frombuffer(_key(seed, purpose, agent, round, step), "<u8")
        source.state = state  # its position is the start's
        yield source.random_raw(count)  # [count]


def _key(seed: int, purpose: str, agent: int, round: int, step: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{purpose}/{agent}/{round}/{step}".encode(), digest_size=16).digest()
