"""Rounds as recordings: the launches of `learn` and `fuse` are recorded once, and every later round replays them.

With twenty agents a host takes longer to issue a round, launch by launch, than a GPU takes to compute it. A recording
(a CUDA graph) is one launch, but repeats what it was made of: the same memory, the same numbers passed to kernels. So
inputs are copied to where they were, batches are drawn on the host and put in the place of those before, and a number
that changes from round to round comes from memory, too (`Clock.varying`).

An algorithm declares which steps can be recorded (`Algorithm.recordable`). Such a step is first played unchanged, then
its batches and varying numbers are noted, then it is recorded, and then replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from peermask.algorithms.contract import Algorithm, Clock, LocalData
from peermask.compute.network import Batch
from peermask.graph.mixing import Mixing
from peermask.run.feed import Draw, Feed, Prefetch, fill
from peermask.wire.schema import Payload

logger = logging.getLogger(__name__)


def tensors_of(state: Any) -> dict[str, Tensor]:
    """Return tensors by name; those of a nested state have its name first: `personal.scores`."""
    named: dict[str, Tensor] = {}
    for one in fields(state):
        value = getattr(state, one.name)
        if is_dataclass(value):
            named |= {f"{one.name}.{name}": tensor for name, tensor in tensors_of(value).items()}
        elif value is not None:
            named[one.name] = value
    return named


def with_tensors(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state with those of `tensors_of` replaced."""
    changes: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if "." not in name}
    for outer in {name.split(".", 1)[0] for name in tensors if "." in name}:
        inner = {name.split(".", 1)[1]: tensor for name, tensor in tensors.items() if name.startswith(outer + ".")}
        changes[outer] = with_tensors(getattr(state, outer), inner)
    return replace(state, **changes)


T = TypeVar("T")
Named = Mapping[str, Tensor]
Function = Callable[[Named, Any, Clock], Any]  # inputs, data, clock -> a state, with or without losses [A]

_LINE = 4  # floats from one number to the next: kernels are compiled for memory aligned to 16 bytes
_RECEIVED = "received/"  # before the names of messages, among a state's


class Unrecordable(Exception):
    """Error: a step that a recording cannot repeat."""


class Recording(Protocol):
    """Replay of a function on the same memory."""

    def record(self, function: Callable[[], T]) -> T: ...
    def replay(self) -> None: ...


class CudaGraph:
    """A `Recording` of launches; nothing is computed while it is made."""

    def __init__(self, pool: Any) -> None:
        self.graph, self.pool = torch.cuda.CUDAGraph(), pool

    def record(self, function: Callable[[], T]) -> T:
        spare = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if spare < torch.cuda.max_memory_allocated():
            raise Unrecordable("a recording keeps the memory of a round to itself, and there is too little")
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        state = generator.graphsafe_get_state()
        # A capture that fails leaves the generator's state unusable, so it is given another one.
        generator.graphsafe_set_state(generator.clone_state())
        try:
            # Checkpoints are written by another thread, which may call the device meanwhile.
            with torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode="thread_local"):
                return function()
        finally:
            generator.graphsafe_set_state(state)

    def replay(self) -> None:
        self.graph.replay()


def cuda_graphs() -> Callable[[], Recording]:
    """Make recordings that share their memory: they are replayed in the order of recording."""
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)


class Recorded:
    """`learn`, `share` and `fuse` of an algorithm for one chunk, by recordings where they can be made."""

    def __init__(self, algorithm: Algorithm[Any], recordings: Callable[[], Recording]) -> None:
        self.algorithm, self.recordings = algorithm, recordings
        self.steps: dict[tuple[str | int, ...], _Step] = {}
        self.mixing: Mixing | None = None
        self.drawing = Prefetch()
        self.failed = False
        self.results: set[int] = set()  # where recordings leave theirs
        self.shares: set[float] = set()  # of all rounds, after which steps may do something else

    def learn(self, state: Any, data: LocalData, clock: Clock) -> tuple[Any, Tensor]:
        def learn(inputs: Named, data: LocalData, clock: Clock) -> tuple[Any, Tensor]:
            return self.algorithm.learn(with_tensors(state, inputs), data, clock)

        learned, loss = self._play("learn", learn, tensors_of(state), data, clock)
        return learned, loss.clone()  # the next round writes over it

    def share(self, state: Any) -> Payload:
        return self.algorithm.share(state)

    def fuse(self, state: Any, received: Payload, mixing: Mixing, clock: Clock) -> Any:
        fused = self._fused(state, received, mixing, clock)
        self.drawing.start()
        return fused

    def _fused(self, state: Any, received: Payload, mixing: Mixing, clock: Clock) -> Any:
        self.mixing = self.mixing or mixing
        if mixing is not self.mixing:  # links that change
            return self.algorithm.fuse(state, received, mixing, clock)
        tensors = tensors_of(state)

        def fuse(inputs: Named, _: LocalData, clock: Clock) -> Any:
            messages = {name: inputs[_RECEIVED + name] for name in received}
            before = with_tensors(state, {name: inputs[name] for name in tensors})
            return self.algorithm.fuse(before, messages, mixing, clock)

        inputs = tensors | {_RECEIVED + name: leaf for name, leaf in received.items()}
        return self._play("fuse", fuse, inputs, None, clock)

    def _play(self, name: str, function: Function, inputs: Named, data: LocalData | None, clock: Clock) -> Any:
        if self.failed or name not in self.algorithm.recordable:
            return function(inputs, data, clock)
        # One for each form of a state: later batches of a round find tensors that the first does not. One for each part
        # of the run. And two in turn: every other round begins with what the one before left in its memory, and copies
        # nothing.
        part = sum(clock.is_after(share) for share in self.shares)
        step = self.steps.setdefault((name, part, clock.round % 2, *inputs), _Step())
        if step.stage == "replay":
            return step.replayed(inputs, data, clock, self.drawing)
        if step.stage == "record":
            try:
                return step.recorded(function, inputs, data, clock, self.drawing, self.recordings(), self.results)
            except (Unrecordable, RuntimeError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                logger.warning(f"rounds run without CUDA graphs: {name} cannot be recorded: {reason}")
                self.failed = True  # the memory that recordings share cannot be trusted now
                return function(inputs, data, clock)
        if step.stage == "watch":
            result = step.watched(function, inputs, data, clock)
            self.shares |= step.shares
            return result
        step.stage = "watch" if step.stage == "first" else step.stage
        return function(inputs, data, clock)


@dataclass
class _Step:
    """One step of a round on its way from being played to being replayed."""

    stage: Literal["first", "watch", "record", "replay", "never"] = "first"
    draws: dict[int, Draw] = field(default_factory=dict)  # by step of `LocalData.batch`
    rates: list[Callable[[float], float]] = field(default_factory=list)  # by progress
    shares: set[float] = field(default_factory=set)  # see `Clock.is_after`

    def watched(self, function: Function, inputs: Named, data: LocalData | None, clock: Clock) -> Any:
        """Play a step unchanged, and note what it asks for."""
        source = _StepData(data, clock, self.draws, recording=False) if isinstance(data, Feed) else data
        result = function(inputs, source, _NotingClock.of(clock, self))
        addresses = {tensor.data_ptr() for tensor in inputs.values()}
        state_only = not isinstance(result, tuple)
        idle = state_only and all(tensor.data_ptr() in addresses for tensor in _tensors_in(result))
        self.stage = "never" if idle else "record"
        return result

    def recorded(
        self,
        function: Function,
        inputs: Named,
        data: LocalData | None,
        clock: Clock,
        drawing: Prefetch,
        recording: Recording,
        owned: set[int],
    ) -> Any:
        """Play a step for the first time from its own memory."""
        device = next(iter(inputs.values())).device
        # What another recording leaves in its own memory is read from there.
        self.inputs = {name: each if each.data_ptr() in owned else each.clone() for name, each in inputs.items()}
        self.draws = {step: tuple(part.to(device) for part in draw) for step, draw in self.draws.items()}
        self.numbers = torch.zeros(len(self.rates), _LINE, device=device)
        source = _StepData(data, clock, self.draws, recording=True) if isinstance(data, Feed) else data
        self.result = recording.record(lambda: function(self.inputs, source, RecordedClock.of(clock, self.numbers)))
        self.recording, self.stage = recording, "replay"
        owned.update(tensor.data_ptr() for tensor in _tensors_in(self.result))
        return self.replayed(inputs, data, clock, drawing)

    def replayed(self, inputs: Named, data: LocalData | None, clock: Clock, drawing: Prefetch) -> Any:
        for name, tensor in inputs.items():
            if tensor.data_ptr() != self.inputs[name].data_ptr():
                self.inputs[name].copy_(tensor)
        if self.draws:
            assert isinstance(data, Feed)
            for places, draw in zip(self.draws.values(), drawing.draws(data, clock, self.draws), strict=True):
                for place, drawn in zip(places, draw, strict=True):
                    fill(place, drawn)
        if self.rates:
            fill(self.numbers[:, 0], torch.tensor([rate(clock.progress) for rate in self.rates]))
        self.recording.replay()
        return self.result


def _tensors_in(result: Any) -> Iterator[Tensor]:
    state = result[0] if isinstance(result, tuple) else result
    return iter(tensors_of(state).values())


class _NotingClock(Clock):
    """Clock that notes numbers that vary, and shares of a run."""

    step: _Step

    @classmethod
    def of(cls, clock: Clock, step: _Step) -> _NotingClock:
        noting = cls(clock.round, clock.rounds, clock.batch, clock.batches)
        object.__setattr__(noting, "step", step)
        return noting

    def varying(self, of: Callable[[float], float]) -> float | Tensor:
        self.step.rates.append(of)
        return super().varying(of)

    def is_after(self, share: float) -> bool:
        self.step.shares.add(share)
        return super().is_after(share)


class RecordedClock(Clock):
    """Clock that gives varying numbers as places in memory, in the order of requests."""

    clock: Clock
    places: Iterator[Tensor]

    @classmethod
    def of(cls, clock: Clock, numbers: Tensor) -> RecordedClock:  # [rates, _LINE]
        recorded = cls(clock.round, clock.rounds, clock.batch, clock.batches)
        object.__setattr__(recorded, "clock", clock)
        object.__setattr__(recorded, "places", iter(numbers[:, 0]))
        return recorded

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "progress"):
            raise Unrecordable(f"it reads clock.{name}, which a recording would repeat")
        return super().__getattribute__(name)

    def varying(self, of: Callable[[float], float]) -> Tensor:  # noqa: ARG002
        return next(self.places)

    def is_after(self, share: float) -> bool:
        return self.clock.is_after(share)


@dataclass(frozen=True)
class _StepData:
    """Batches whose draws are noted, or, in a recording, come from the memory that draws are copied to."""

    feed: Feed
    clock: Clock
    draws: dict[int, Draw]
    recording: bool

    @property
    def sizes(self) -> Tensor:
        return self.feed.sizes

    def batch(self, clock: Clock, step: int = 0) -> Batch:  # noqa: ARG002
        if self.recording:
            return self.feed.gathered(self.draws[step])
        self.draws[step] = self.feed.draw(self.clock, step)
        return self.feed.batch(self.clock, step)

    def validation_accuracy(self, params: Tensor) -> Tensor:
        if self.recording:
            raise Unrecordable("it looks at validation data")
        return self.feed.validation_accuracy(params)
