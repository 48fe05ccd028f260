"""Where the bytes of a run went, and what plainer ways of sending the same would have cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from peermask.reports.curves import POINTS, Row, even_choice
from peermask.wire.frame import FRAME_BYTES


@dataclass
class Spent:
    """Bytes over all links of all agents."""

    messages: int = 0
    keyframes: int = 0  # bodies of messages that hold a whole mask or model
    deltas: int = 0  # bodies of messages that hold changes
    headers: int = 0
    bitmap: float = 0.0  # at 1 bit per weight
    floats: float = 0.0  # at 32 bits per weight
    per_agent: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # over one link
    per_message: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # by round

    @property
    def total(self) -> int:
        return self.keyframes + self.deltas + self.headers


def bytes_spent(rows: list[Row], weights: int) -> Spent:
    """From the rows of traffic.csv.

    Tables without a column `kind` count an agent's first mask as a keyframe, having nothing to differ from, and all
    later ones as deltas; messages with real values hold whole models.
    """
    spent = Spent()
    for row in rows:
        links, agent = int(row["links"]), int(row["agent"])
        if not links:  # no one received it
            continue
        size = float(row.get("coded_bytes") or row["bitmap_bytes"])
        body = int(links * max(0.0, size - FRAME_BYTES))
        is_mask = float(row["paper_bits"]) < 16 * weights  # real values take 32 bits each, masks 1
        is_delta = row["kind"].endswith("delta") if row.get("kind") else is_mask and agent in spent.per_agent
        if is_delta:
            spent.deltas += body
        else:
            spent.keyframes += body
        spent.messages += links
        spent.headers += int(links * min(size, FRAME_BYTES))
        spent.bitmap += links * weights / 8
        spent.floats += links * 4.0 * weights
        spent.per_agent[agent] += size
        spent.per_message[int(row["round"])].append(size)
    return spent


def message_curve(spent: Spent) -> tuple[list[int], list[float]]:
    """Rounds, and the mean bytes of a message in each; of many rounds an even choice."""
    rounds = sorted(spent.per_message)
    chosen = [rounds[place] for place in even_choice(len(rounds), POINTS)]
    return chosen, [round(sum(spent.per_message[r]) / len(spent.per_message[r]), 1) for r in chosen]
