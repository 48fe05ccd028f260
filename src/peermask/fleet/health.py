"""The state of an agent, and the reasons for it.

ok         rounds end in time, or are finished
degraded   rounds end, but the agent learns with less than it should, or more slowly
failing    no round has ended for longer than any limit of the fleet
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from peermask.wire.mailbox import KEPT_ROUNDS

State = Literal["ok", "degraded", "failing"]
STATES: tuple[State, ...] = get_args(State)
BEHIND_ROUNDS = KEPT_ROUNDS  # more than these, and neighbours no longer have the rounds that the agent needs
COSTLY_ROUNDS = 2  # rounds whose whole time limit a neighbour may use up before it is named


@dataclass(frozen=True)
class Health:
    state: State = "ok"
    reasons: tuple[str, ...] = ()

    @property
    def trouble(self) -> str | None:
        return "; ".join(self.reasons) or None

    def __str__(self) -> str:
        return self.state if not self.reasons else f"{self.state}: {self.trouble}"


def assess(
    *,
    neighbours: int,
    heard: int,
    refused: int,
    behind: int,
    costly: Collection[int],
    stalled: str | None = None,
) -> Health:
    """The state by counts of the last round.

    `refused`: neighbours that refuse this agent or are refused; `behind`: rounds that most neighbours are ahead;
    `costly`: neighbours that used up the time limit of several rounds; `stalled`: why no round ends.
    """
    reasons = []
    if neighbours and refused >= neighbours:
        reasons.append(f"refused by all {neighbours} neighbours")
    elif 2 * heard < neighbours:
        reasons.append(f"hears {heard} of {neighbours} neighbours")
    if behind > BEHIND_ROUNDS:
        reasons.append(f"{behind} rounds behind its neighbours")
    if costly:
        named = ", ".join(map(str, sorted(costly)))
        reasons.append(f"agent {named} used up the time limit of {COSTLY_ROUNDS} rounds or more")
    if stalled is not None:
        return Health("failing", (stalled, *reasons))
    return Health("degraded" if reasons else "ok", tuple(reasons))
