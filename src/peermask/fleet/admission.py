"""What an agent accepts from neighbours: checks, rate limits, refusals and counts."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from peermask.algorithms.contract import Agents, Algorithm
from peermask.errors import WireError
from peermask.fleet.environment import SYSTEM_TIME, Line, TimeSource
from peermask.wire.schema import MessageRow
from peermask.wire.sets import slices

# Checks of what a neighbour sends: masks must fit its retention, and values must not exceed a bound.
#
# A valid frame of a genuine sender can still be false. A mask with more entries than its sender may keep would outvote
# others, and one huge value would make its receivers' models NaN, and then those of their neighbours.

LARGEST_VALUE = 1000.0  # allowed magnitude of a value; weights and biases of a model that learns are far smaller


class Admission:
    def __init__(self, algorithm: Algorithm[Any], agents: Agents, sizes: Sequence[int]) -> None:
        """`agents`: all agents of the fleet; `sizes`: weights of each masked layer."""
        self.sizes = sizes
        counts = algorithm.mask_counts(agents)
        self.counts: Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {  # least and most, [N, L]
            name: (least.cpu().numpy(), most.cpu().numpy()) for name, (least, most) in counts.items()
        }

    def __call__(self, sender: int, payload: MessageRow) -> None:
        """Raise a WireError for a payload that an honest sender cannot send."""
        for name, leaf in payload.items():
            if leaf.dtype == np.bool_:
                self._check_counts(sender, name, leaf)
            elif leaf.size and float(np.abs(leaf).max()) > LARGEST_VALUE:
                raise WireError(f"{name!r} holds {np.abs(leaf).max():.3g}, allowed: {LARGEST_VALUE:g}", "values")

    def _check_counts(self, sender: int, name: str, mask: np.ndarray[Any, Any]) -> None:
        if name not in self.counts:
            return
        least, most = (bound[sender] for bound in self.counts[name])  # [L]
        for layer, part in enumerate(slices(self.sizes)):
            count = np.count_nonzero(mask[part])
            if not least[layer] <= count <= most[layer]:
                allowed = f"{most[layer]}" if least[layer] == most[layer] else f"{least[layer]} to {most[layer]}"
                raise WireError(
                    f"{name!r} keeps {count} weights of layer {layer}, its retention gives {allowed}", "counts"
                )


# A rate limit for one neighbour: an amount that grows with time and with every published round.
#
# The part for each round does not limit how fast a fleet is; the part for time is for agents that wait, retry or
# restart.


class Allowance:
    """Starts with a minute's amount, which is also the maximum."""

    def __init__(self, per_minute: float, per_round: float, time: TimeSource = SYSTEM_TIME) -> None:
        self.per_minute, self.per_round, self.time = per_minute, per_round, time
        self.left = per_minute
        self.counted = self.time.monotonic()

    def new_round(self) -> None:
        """A round was published."""
        self._fill(self.per_round)

    def spend(self, amount: float) -> bool:
        """Whether anything is left; if so, subtract `amount`, which may go below zero and is refilled first."""
        now = self.time.monotonic()
        self._fill((now - self.counted) * self.per_minute / 60)
        self.counted = now
        if self.left <= 0:
            return False
        self.left -= amount
        return True

    def _fill(self, amount: float) -> None:
        self.left = min(self.left + amount, self.per_minute)


# Refused messages of neighbours, counted by neighbour and reason; the first of each kind are logged.
#
# Lines are limited for each neighbour, so that one that sends only garbage does not flood the log. An honest neighbour
# that is late or early is out of step: such refusals are counted apart, and use up no lines of bad messages.

LOGGED_LINES = 20  # logged for one neighbour; further ones are only counted
LOGGED_OUT_OF_STEP = 3  # the same for messages of another round
OUT_OF_STEP = frozenset({"ahead", "old", "flood"})  # why messages of honest neighbours are refused


class Refusals:
    """Thread-safe: requests are refused in the transport's thread, answers in the agent's."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: dict[int, Counter[str]] = defaultdict(Counter)
        self._said: dict[tuple[int, bool], set[str]] = defaultdict(set)  # by neighbour, and whether out of step
        self._lock = threading.Lock()

    def note(self, neighbour: int, why: str, line: str) -> None:
        """Count a refusal, and log its line unless it was logged before."""
        with self._lock:
            self._counts[neighbour][why] += 1
            late = why in OUT_OF_STEP
            said, most = self._said[neighbour, late], LOGGED_OUT_OF_STEP if late else LOGGED_LINES
            if line in said or len(said) >= most:
                return
            said.add(line)
            last = len(said) == LOGGED_LINES
        self._say(Line(line, "refused", "warning", neighbour=neighbour, why=why))
        if last:
            text = f"agent {neighbour} was refused for {LOGGED_LINES} reasons; further ones are counted, not logged"
            self._say(Line(text, "refused", "warning", neighbour=neighbour, why="many"))

    def counts(self, out_of_step: bool | None = None) -> dict[int, dict[str, int]]:
        """Neighbour -> why -> how often: of all messages, of those out of step, or of the bad ones."""
        with self._lock:
            chosen = {
                neighbour: {
                    why: count
                    for why, count in sorted(counts.items())
                    if out_of_step is None or (why in OUT_OF_STEP) == out_of_step
                }
                for neighbour, counts in sorted(self._counts.items())
            }
        return {neighbour: counts for neighbour, counts in chosen.items() if counts}


# Counts of messages and bytes, by neighbour and by round.


class Tally:
    """Thread-safe: the transport's thread sends, the agent's receives, and others read."""

    def __init__(self, time: TimeSource = SYSTEM_TIME) -> None:
        self.time = time
        self._messages: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._last: dict[int, float] = {}
        self._lock = threading.Lock()

    def add(self, neighbour: int, size: int) -> None:
        with self._lock:
            self._messages[neighbour] += 1
            self._bytes[neighbour] += size
            self._last[neighbour] = self.time.monotonic()

    def last(self) -> dict[int, float]:
        """Neighbour -> when the last message was counted, by the clock that only goes forward."""
        with self._lock:
            return dict(self._last)

    def totals(self) -> tuple[dict[int, int], dict[int, int]]:
        """Messages and bytes, by neighbour."""
        with self._lock:
            return (dict(sorted(self._messages.items())), dict(sorted(self._bytes.items())))


@dataclass(frozen=True)
class Sent:
    """Frames of one round that were sent."""

    frames: int = 0
    bytes: int = 0
    keyframes: int = 0  # of them

    def one_more(self, size: int, keyframe: bool) -> Sent:
        return Sent(self.frames + 1, self.bytes + size, self.keyframes + keyframe)

    @property
    def kind(self) -> str:
        """As in traffic.csv: neighbours may have received different kinds."""
        if not self.frames:
            return ""
        return "delta" if not self.keyframes else "keyframe" if self.keyframes == self.frames else "both"
