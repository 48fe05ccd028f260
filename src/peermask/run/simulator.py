"""The agents of one process, all of a run or some: one after another on the cores of a CPU, stacked on a GPU.

Agents are held in chunks. On a CPU a chunk is a single agent, computed on one thread as on its own device,
and chunks run side by side; on a GPU a chunk is as many agents as fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData
from peermask.compute.device import fast_float32, keep_freed_memory, made_current, one_thread_each, rows_on_cpu
from peermask.errors import RunError
from peermask.graph.mixing import Mixing
from peermask.run.cuda_graphs import Recorded, cuda_graphs, tensors_of, with_tensors
from peermask.run.feed import Feed
from peermask.run.metrics import Score
from peermask.wire.cost import Spread, in_turn
from peermask.wire.schema import Payload

T = TypeVar("T")

# Messages of each chunk -> all messages that came, and how each chunk is to mix them
Move = Callable[[Clock, Sequence[Payload]], tuple[Payload, Sequence[Mixing]]]


class Steps(Protocol):
    """Steps of an algorithm that a round calls, directly or recorded (`run/cuda_graphs.py`)."""

    def learn(self, state: Any, data: LocalData, clock: Clock) -> tuple[Any, Tensor]: ...
    def share(self, state: Any) -> Payload: ...
    def fuse(self, state: Any, received: Payload, mixing: Mixing, clock: Clock) -> Any: ...


@dataclass(frozen=True)
class RoundResult:
    losses: Tensor  # [A]
    shared: Payload  # [K, ...]: all messages of the round


class Simulator:
    """The states of the agents here, and the round that moves them on. Use as a context manager."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        agents: Agents,
        feed: Feed,
        mixing: Mixing,
        chunk: int,
        workers: int | None = None,
        changing: Callable[[int], Mixing] | None = None,
    ) -> None:
        """Set up all chunks; `changing` gives the mixing of a round where that changes."""
        self.algorithm = algorithm
        self.device = feed.dataset.train.inputs.device
        self.feeds, self.states = [], []
        self._changing, self._mixing = changing, mixing
        for start in range(0, len(agents.ids), chunk):
            rows = slice(start, start + chunk)
            self.feeds.append(feed.rows(rows))
            with made_current(self.device):
                self.states.append(algorithm.init(agents.rows(rows).to(self.device)))
        self.mixings = self._chunks(mixing)
        self._workers = workers or os.cpu_count() or 1
        self._pool: ThreadPoolExecutor | None = None
        self._exit = ExitStack()
        self.steps: Steps = algorithm

    def __enter__(self) -> Simulator:
        if self.device.type == "cuda":
            self._exit.enter_context(made_current(self.device))
            self._exit.enter_context(fast_float32())
        elif len(self.states) > 1:
            keep_freed_memory()
            self._exit.enter_context(one_thread_each())
            # Every thread has its own limit of threads for its first operations, independent of the main one's.
            pool = ThreadPoolExecutor(self._workers, initializer=torch.set_num_threads, initargs=(1,))
            self._pool = self._exit.enter_context(pool)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def record(self) -> None:
        """Replay recordings from the fifth round on, on a GPU that computes all agents at once."""
        if self.device.type == "cuda" and len(self.states) == 1:
            self.steps = Recorded(self.algorithm, cuda_graphs())

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(agent for feed in self.feeds for agent in feed.ids)

    def play(self, clock: Clock, move: Move | None = None) -> RoundResult:
        """Play one round: learn, share, move, fuse. Messages move between the agents here unless `move` is another way.

        This order is written only here: the simulator, ranks and nodes differ in `move` alone (`run/exchange.py`).
        """
        chunks, clocks = range(len(self.states)), [clock] * len(self.states)
        learned = self.learn_some(chunks, clocks)
        states = [state for state, _ in learned]
        received, mixings = (move or self.concatenate)(clock, [self.steps.share(state) for state in states])
        self.fuse_some(chunks, states, [received] * len(mixings), mixings, clocks)
        return RoundResult(torch.cat([loss for _, loss in learned]), received)

    def learn_some(self, chunks: Sequence[int], clocks: Sequence[Clock]) -> list[tuple[Any, Tensor]]:
        """Play the first half of a round of some chunks, each at its own clock; return new states and losses [A]."""
        states, feeds = [self.states[place] for place in chunks], [self.feeds[place] for place in chunks]
        return self.spread(partial(learn_all, self.steps), states, feeds, clocks)

    def fuse_some(
        self,
        chunks: Sequence[int],
        learned: Sequence[Any],
        received: Sequence[Payload],
        mixings: Sequence[Mixing],
        clocks: Sequence[Clock],
    ) -> None:
        """Play the second half, from the states of the first and each chunk's messages."""
        fused = self.spread(self.steps.fuse, learned, received, mixings, clocks)
        for place, state in zip(chunks, fused, strict=True):
            self.states[place] = state

    def test(self) -> Score:
        return self._score(Feed.test)

    def test_unmixed(self, shared: Payload) -> Tensor | None:
        """Accuracy, or the task's figure, of models as they were sent, [N]; None for an algorithm that sends none."""
        models = self.algorithm.unmixed_model(shared)  # [N, P]
        if models is None:
            return None
        parts = models.to(self.device).split([len(feed.ids) for feed in self.feeds])
        return torch.cat([score.main for score in self.spread(Feed.test, self.feeds, parts)]).cpu()

    def validate(self) -> Score:
        return self._score(Feed.validate)

    def densities(self) -> Tensor:
        """[N]: the share of masked weights each personal model really uses."""

        def used(feed: Feed, state: Any) -> Tensor:
            params = self.algorithm.local_model(state)
            return (params[:, : feed.network.layout.weights] != 0).float().mean(1)

        return torch.cat(self.spread(used, self.feeds, self.states)).cpu()

    def masks(self) -> Tensor:
        """[N, P_w] bool on the CPU: which masked weights each personal model uses."""
        weights = self.feeds[0].network.layout.weights
        return rows_on_cpu([self.algorithm.local_model(state)[:, :weights] != 0 for state in self.states])

    def local_models(self) -> Tensor:
        """[N, P] on the CPU: every agent's personal parameters."""
        return torch.cat([self.algorithm.local_model(state).cpu() for state in self.states])

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name, one row an agent, on the CPU."""
        each = [tensors_of(state) for state in self.states]
        return {name: rows_on_cpu([tensors[name] for tensors in each]) for name in each[0]}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        names = tensors_of(self.states[0])
        if set(tensors) != set(names):
            raise RunError(
                f"the checkpoint holds {', '.join(sorted(tensors))}; this version needs "
                f"{', '.join(sorted(names))}: start a new run"
            )
        start = 0
        for index, (state, feed) in enumerate(zip(self.states, self.feeds, strict=True)):
            rows = slice(start, start + len(feed.ids))
            own = {name: tensor[rows].to(self.device) for name, tensor in tensors.items()}
            self.states[index] = with_tensors(state, own)
            start = rows.stop

    def _score(self, measure: Callable[[Feed, Tensor], Score]) -> Score:
        scores = self.spread(
            lambda feed, state: measure(feed, self.algorithm.local_model(state)), self.feeds, self.states
        )
        rows = torch.cat([score.rows() for score in scores])  # [N, figures]
        return scores[0].like(rows.cpu())  # one copy: every one waits for the device

    def concatenate(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        """Concatenate messages: all agents are here, so nothing moves."""
        return join_messages(shared, self.spread), self.mixings_of(clock.round)

    def mixings_of(self, round: int) -> Sequence[Mixing]:
        """Mixing of each chunk in a round."""
        if self._changing is not None:
            before, self._mixing = self._mixing, self._changing(round)
            if self._mixing is not before:
                self.mixings = self._chunks(self._mixing)
        return self.mixings

    def _chunks(self, mixing: Mixing) -> list[Mixing]:
        there, ends = mixing.to(self.device), accumulate(len(feed.ids) for feed in self.feeds)
        return [there.rows(slice(end - len(feed.ids), end)) for end, feed in zip(ends, self.feeds, strict=True)]

    def spread(self, function: Callable[..., T], /, *columns: Iterable[Any]) -> list[T]:
        """Apply a function to every chunk, or to one item for each, on all cores."""
        if self._pool is None:
            return list(map(function, *columns))
        return list(self._pool.map(function, *columns))


def learn_all(algorithm: Steps, state: Any, data: LocalData, clock: Clock) -> tuple[Any, Tensor]:
    """Learn from all batches of a round in turn; return the mean of their losses [A]."""
    losses = []
    for batch in range(clock.batches):
        state, loss = algorithm.learn(state, data, clock.at(batch))
        losses.append(loss)
    return state, losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)


def join_messages(shared: Sequence[Payload], spread: Spread = in_turn, before: int = 0, behind: int = 0) -> Payload:
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
