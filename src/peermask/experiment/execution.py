"""How a run is computed and watched: nothing here changes its result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.experiment.build import Experiment
from peermask.experiment.metrics import Evaluation
from peermask.models.network import Gradient

if TYPE_CHECKING:
    from peermask.ranks.group import Ranks

Status = Literal["finished", "converged", "interrupted"]


class Observer(Protocol):
    """Is notified of progress: a display, or nothing."""

    def begin(self, experiment: Experiment, name: str, round: int) -> None: ...
    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None: ...
    def evaluation(self, evaluation: Evaluation) -> None: ...
    def end(self, status: Status) -> None: ...


class Silent:
    """An observer that shows nothing."""

    def begin(self, experiment: Experiment, name: str, round: int) -> None: ...
    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None: ...
    def evaluation(self, evaluation: Evaluation) -> None: ...
    def end(self, status: Status) -> None: ...


def to_stderr(line: str) -> None:
    print(f"peermask: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Execution:
    """How a run is computed, watched and stopped; nothing here changes its result.

    Attributes:
        device: `"cpu"`, `"cuda"`, `"cuda:1"`, or `"auto"`: the GPU if there is one.
        chunk: Agents computed together; by default one on a CPU and as many as fit on a GPU.
        workers: Threads on a CPU; by default one for each core.
        observer: Is notified of progress: an object with the methods `begin`, `round`, `evaluation` and `end`.
        should_stop: Asked after every round; if it returns True, the run is saved and ends as "interrupted".
        final_checkpoint: Whether to save the agents' states at the end. `local_models` and exports need them.
        writes: Write checkpoints while the next rounds are computed ("beside"), before them ("first"), or "never".
        gradient: Computes the gradients instead of the network itself: see `peermask.engine.together`.
        ranks: The other processes that agents are divided between, where there are any; see docs/scale.md. Their
            device takes the place of `device`.
        warn: Is given a line of text for each problem that the run continues after.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> execution = peermask.Execution(device="cpu", workers=1, should_stop=lambda: True)
        >>> peermask.run_experiment(config, "run", execution=execution).status
        'interrupted'
    """

    device: str = "auto"
    chunk: int | None = None
    workers: int | None = None
    observer: Observer = field(default_factory=Silent)
    should_stop: Callable[[], bool] = lambda: False
    final_checkpoint: bool = True  # hundreds of runs of which only the tables matter can do without
    # Checkpoints: beside the rounds that follow, or before the first of them; or another process writes the run
    writes: Literal["beside", "first", "never"] = "beside"
    gradient: Gradient | None = None  # where gradients are computed, if beside those of other runs
    ranks: Ranks | None = None
    warn: Callable[[str], None] = to_stderr  # called for problems that do not stop the run

    def __post_init__(self) -> None:
        if self.ranks is not None:
            object.__setattr__(self, "device", str(self.ranks.device))
