"""What a step of a round asks for, found out by playing it once: whether it can be recorded (`run/cuda_graphs.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from peermask.algorithms.contract import Clock, LocalData
from peermask.compute.network import Batch
from peermask.run.feed import Draw, Feed

Named = Mapping[str, Tensor]
Function = Callable[[Named, Any, Clock], Any]  # inputs, data, clock -> a state, with or without losses [A]


@dataclass
class CaptureCheck:
    """A step that was played, and what it asked for."""

    draws: dict[int, Draw] = field(default_factory=dict)  # by step of `LocalData.batch`
    rates: list[Callable[[float], float]] = field(default_factory=list)  # numbers that vary, by progress
    shares: set[float] = field(default_factory=set)  # of all rounds, after which it may do something else
    odd: list[str] = field(default_factory=list)  # what no recording can give
    waits: str | None = None  # the first operation that waits for the device
    result: Any = None


def check_capture(function: Function, inputs: Named, data: LocalData | None, clock: Clock) -> CaptureCheck:
    """Play a step unchanged."""
    seen = CaptureCheck()
    source = _WatchedData(data, clock, seen) if isinstance(data, Feed) else data
    with _Waits() as waiting:
        seen.result = function(inputs, source, _WatchedClock.of(clock, seen))
    seen.waits = waiting.found
    return seen


class _WatchedClock(Clock):
    """Notes whether anything but the batch, numbers that vary, or the part of the run is read."""

    seen: CaptureCheck

    @classmethod
    def of(cls, clock: Clock, seen: CaptureCheck) -> _WatchedClock:
        watched = cls(clock.round, clock.rounds, clock.batch, clock.batches)
        object.__setattr__(watched, "seen", seen)
        return watched

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "progress"):
            object.__getattribute__(self, "seen").odd.append(name)
        return object.__getattribute__(self, name)

    def varying(self, of: Callable[[float], float]) -> float:
        self.seen.rates.append(of)
        return of((object.__getattribute__(self, "round") - 1) / self.rounds)

    def is_after(self, share: float) -> bool:
        self.seen.shares.add(share)
        return bool(object.__getattribute__(self, "round") > share * self.rounds)


@dataclass(frozen=True)
class _WatchedData:
    """Notes which batches are drawn, and whether anything else is asked for."""

    feed: Feed
    clock: Clock
    seen: CaptureCheck

    @property
    def sizes(self) -> Tensor:
        return self.feed.sizes

    def batch(self, clock: Clock, step: int = 0) -> Batch:  # noqa: ARG002
        self.seen.draws[step] = self.feed.draw(self.clock, step)
        return self.feed.batch(self.clock, step)

    def validation_accuracy(self, params: Tensor) -> Tensor:
        self.seen.odd.append("validation_accuracy")
        return self.feed.validation_accuracy(params)


class _Waits(TorchFunctionMode):
    """Notes the first operation that waits for the device.

    A capture in which one is called fails, and PyTorch is unreliable from then on: random numbers raised errors, and a
    later run in the same process read wrong labels. So it is found out before anything is captured. A dispatch mode
    would see backward passes, too, but imports torch._dynamo, for seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: str | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.found is None and waits(func, args, kwargs or {}, result):
            self.found = _name(func)
        return result


_NUMBERS = {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__index__", "__float__", "__complex__"}
_ANSWERS = {"__contains__", "__repr__", "equal", "allclose"}
_SIZES = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}
_WAITING = _NUMBERS | _ANSWERS | _SIZES


def waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether the host must know numbers that lie on a device before an operation can end."""
    if all(tensor.is_cpu for tensor in _tensors(args, kwargs)):
        return False
    name = _name(func)
    if name == "__getitem__" or (name == "__setitem__" and isinstance(args[2], Tensor)):
        # How many numbers are chosen depends on how many are true.
        return any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))
    if name == "where" and len(args) + len(kwargs) == 1:
        return True
    if name == "repeat_interleave":
        return "output_size" not in kwargs
    return name in _WAITING or any(made.is_cpu for made in _tensors(result))


def _tensors(*nested: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
