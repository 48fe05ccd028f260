"""Losses since the last evaluation: of the latest rounds one by one, of those before them the sum.

Evaluations may be as rare as a user likes, and a node runs for weeks: what is kept must not grow with rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

KEPT = 256  # rounds


class RecentLosses:
    """Shapes: N agents, R latest rounds."""

    def __init__(self, saved: Mapping[str, Tensor]) -> None:
        """`saved`: `tensors()` of a checkpoint."""
        # [N] each: on a CPU floats, which are small; on a GPU tensors there, since looking at one waits for the device
        self._latest: list[list[float] | Tensor] = saved["recent"].tolist() if saved else []
        self._sum = saved.get("sum")  # [N] float64, of the rounds before the latest
        self._summed = int(saved["rounds"]) if "rounds" in saved else 0

    def __bool__(self) -> bool:
        return bool(self._latest)

    @property
    def full(self) -> bool:
        return len(self._latest) > KEPT

    def add(self, losses: Tensor) -> None:
        """Of a round, [N]."""
        self._latest.append(losses.tolist() if losses.device.type == "cpu" else losses)

    def latest(self, rounds: int = 0) -> Tensor:
        """[R, N]: of the last `rounds` rounds, or of all that are not summed up."""
        return torch.stack([torch.as_tensor(losses).cpu() for losses in self._latest[-rounds:]])

    def sum_up(self) -> None:
        """Keep only the last round, and the sum of those before it."""
        before = self.latest()[:-1].double()
        self._sum = before.sum(0) if self._sum is None else self._sum + before.sum(0)
        self._summed += len(before)
        del self._latest[:-1]

    def mean(self) -> Tensor:
        """[N] over all rounds since the last evaluation."""
        latest = self.latest()
        if self._sum is None:
            return latest.mean(0)
        return ((self._sum + latest.double().sum(0)) / (self._summed + len(latest))).float()

    def clear(self) -> None:
        self._latest.clear()
        self._sum, self._summed = None, 0

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; empty where there are none."""
        if not self:
            return {}
        latest = {"recent": self.latest()}
        return latest if self._sum is None else {**latest, "sum": self._sum, "rounds": torch.tensor(self._summed)}
