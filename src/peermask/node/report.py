"""The status of an agent after a round, and who is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from peermask.node.puller import Absence


@dataclass(frozen=True)
class Report:
    round: int
    rounds: int
    accuracy: float | None  # in the last evaluation
    evaluated: int  # round of that evaluation; 0: none yet
    sent_bytes: float
    alive: int
    neighbours: int
    absent: tuple[Absence, ...]
    figure: str = "accuracy"  # the figure that `accuracy` is, by the task
    loss: float | None = None  # in the last round


class AgentObserver(Protocol):
    """Is told of an agent's rounds, and given lines for its log."""

    def say(self, line: str) -> None: ...
    def round(self, report: Report) -> None: ...
