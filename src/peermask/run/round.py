"""The order of a round, written once: learn, share, exchange, fuse.

The simulator and nodes differ only in the exchange (`run/exchange.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, LocalData
from peermask.graph.mixing import Mixing
from peermask.wire.cost import Spread, in_turn
from peermask.wire.schema import Payload

# What each chunk shares -> all messages that came, and how each chunk is to mix them
Move = Callable[[Clock, Sequence[Payload]], tuple[Payload, Sequence[Mixing]]]


class Steps(Protocol):
    """Steps of an algorithm that a round calls, directly or recorded (`run/cuda_graphs.py`)."""

    def learn(self, state: Any, data: LocalData, clock: Clock) -> tuple[Any, Tensor]: ...
    def share(self, state: Any) -> Payload: ...
    def fuse(self, state: Any, received: Payload, mixing: Mixing, clock: Clock) -> Any: ...


@dataclass(frozen=True)
class RoundResult:
    states: list[Any]  # one per chunk
    losses: Tensor  # [A]
    shared: Payload  # [K, ...]: all messages of the round


def play_round(
    algorithm: Steps, states: Sequence[Any], data: Sequence[LocalData], move: Move, clock: Clock, spread: Spread
) -> RoundResult:
    clocks = [clock] * len(states)
    learned = spread(partial(learn_all, algorithm), states, data, clocks)
    received, mixings = move(clock, [algorithm.share(state) for state, _ in learned])
    messages = [received] * len(mixings)
    fused = spread(algorithm.fuse, [state for state, _ in learned], messages, mixings, clocks)
    return RoundResult(fused, torch.cat([loss for _, loss in learned]), received)


def learn_all(algorithm: Steps, state: Any, data: LocalData, clock: Clock) -> tuple[Any, Tensor]:
    """Learn from all batches of a round in turn; return the mean of their losses [A]."""
    losses = []
    for batch in range(clock.batches):
        state, loss = algorithm.learn(state, data, clock.at(batch))
        losses.append(loss)
    return state, losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)


def concatenated(shared: Sequence[Payload], spread: Spread = in_turn, before: int = 0, behind: int = 0) -> Payload:
    """Concatenate the messages of all chunks, one row an agent, with room for others before and after.

    Each chunk copies its own rows, so that all cores take part."""
    sizes = [len(next(iter(payload.values()), ())) for payload in shared]
    count = before + sum(sizes) + behind
    whole = {name: leaf.new_empty(count, *leaf.shape[1:]) for name, leaf in shared[0].items()}

    def copy_rows(start: int, payload: Payload) -> None:
        for name, leaf in payload.items():
            whole[name][start : start + len(leaf)] = leaf

    spread(copy_rows, accumulate(sizes, initial=before), shared)
    return whole
