"""A run in TensorBoard: the mean over agents, and every agent."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.errors import RunError
from peermask.reports.observers import summary_of
from peermask.run.build import Experiment
from peermask.run.execution import Status
from peermask.run.metrics import Evaluation

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise RunError("--tensorboard needs tensorboard; install it with: pip install 'peermask[tensorboard]'") from error

AGENTS_SHOWN = 100


class TensorBoard:
    """An observer that writes event files under a folder, one folder for each algorithm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None

    def begin(self, experiment: Experiment, name: str, round: int) -> None:
        own = self.folder / f"{experiment.config.name}-{name}-{experiment.config.hash}"
        try:
            # Rounds after the checkpoint that a run resumes from are written again.
            self._writer = SummaryWriter(str(own), purge_step=round + 1 if round else None)
        except OSError as error:
            raise RunError(f"cannot write {own}: {error.strerror}") from error
        if not round:
            self._writer.add_text("config", f"```\n{json.dumps(experiment.config.table(), indent=2)}\n```")

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None: ...

    def evaluation(self, evaluation: Evaluation) -> None:
        if self._writer is None:
            return
        for name, value in summary_of(evaluation).items():
            self._writer.add_scalar(name, value, evaluation.round)
        for agent, accuracy in enumerate(evaluation.test.main[:AGENTS_SHOWN].tolist()):
            self._writer.add_scalar(f"agents/{agent}", accuracy, evaluation.round)
        self._writer.flush()

    def end(self, status: Status) -> None:  # noqa: ARG002
        if self._writer is not None:
            self._writer.close()
            self._writer = None
