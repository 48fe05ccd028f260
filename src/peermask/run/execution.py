"""Execution of a run: device, observer, stopping. Nothing here changes its result."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.run.build import Experiment
from peermask.run.metrics import Evaluation
from peermask.store.table import REPORTED, nanmean
from peermask.task import figure_name, format_figure

if TYPE_CHECKING:
    from peermask.run.rank_group import Ranks
    from peermask.run.result import RunResult

Status = Literal["finished", "converged", "interrupted"]


class Observer(Protocol):
    """Receiver of progress, such as a display."""

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


@dataclass(frozen=True)
class Execution:
    """Settings of how a run is computed, observed and stopped.

    Problems that a run continues after are warnings of Python's `logging`, by the logger `peermask`.

    Attributes:
        device: `"cpu"`, `"cuda"`, `"cuda:1"`, or `"auto"`: the GPU if there is one.
        chunk: Agents computed together; by default one on a CPU and as many as fit on a GPU.
        workers: Threads on a CPU; by default one for each core.
        observer: Is notified of progress: an object with the methods `begin`, `round`, `evaluation` and `end`.
        should_stop: Asked after every round; if it returns True, the run is saved and ends as "interrupted".
        final_checkpoint: Whether to save the agents' states at the end. `local_models` and exports need them.
        writes: Write checkpoints while the next rounds are computed ("beside"), before them ("first"), or "never",
            where another process writes the run.
        ranks: The other processes that agents are divided between, where there are any; see docs/scale.md. Their
            device takes the place of `device`.

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
    final_checkpoint: bool = True
    writes: Literal["beside", "first", "never"] = "beside"
    ranks: Ranks | None = None

    def __post_init__(self) -> None:
        if self.ranks is not None:
            object.__setattr__(self, "device", str(self.ranks.device))


# In a notebook

PAUSE_SECONDS = 0.2  # seconds between two lines: a notebook keeps all that is written over
WIDTH, HEIGHT, MARGIN = 480, 200, 36  # of the curve, in pixels
COLOURS = ("#1f6feb", "#d1602f", "#2f8f4e", "#8250df", "#b08800")


class ProgressLine:
    """An observer that shows progress in one line, on stderr.

    Examples:
        >>> import peermask
        >>> execution = peermask.Execution(observer=peermask.ProgressLine())
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> peermask.run_experiment(config, "run", execution=execution).round
        2
    """

    def __init__(self) -> None:
        self.name, self.rounds, self.accuracy, self.shown = "", 0, "", 0.0

    def begin(self, experiment: Experiment, name: str, round: int) -> None:  # noqa: ARG002
        self.name, self.rounds, self.accuracy = name, experiment.config.rounds, ""

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None:  # noqa: ARG002
        now = time.monotonic()
        if now - self.shown > PAUSE_SECONDS or clock.round == self.rounds:
            self.shown = now
            print(f"\r{self.name}: round {clock.round} of {self.rounds}{self.accuracy}", end="", file=sys.stderr)

    def evaluation(self, evaluation: Evaluation) -> None:
        self.accuracy = f", {evaluation.test.headline}"

    def end(self, status: Status) -> None:
        print(f"\r{self.name}: {status}{self.accuracy}" + 20 * " ", file=sys.stderr)


def as_html(result: RunResult) -> str:
    """A table of agents and the curve of their mean accuracy, with the algorithms it was compared with."""
    arms = {arm.config.algorithm.name if arm is result else arm.root.name: arm for arm in (result, *result.compared)}
    main = result.main_figure
    rows = [
        [
            str(agent.agent),
            " ".join(map(str, agent.labels)),
            f"{agent.retention:g}",
            format_figure("density", agent.density),
        ]
        + [format_figure(main, arm.agents[place].value(main)) for arm in arms.values() if place < len(arm.agents)]
        for place, agent in enumerate(result.agents)
    ]
    rows.append(["mean", "", "", "", *(format_figure(main, arm.mean(main)) for arm in arms.values())])
    head = f"{result.config.name}: {figure_name(main)} after round {result.round} ({result.status})"
    rule = f"<p>{figure_name(main)}: mean over {REPORTED}</p>"
    headings = _row("th", ["agent", "labels", "retention", "density", *arms])
    table = f"<table>{headings}{''.join(_row('td', cells) for cells in rows)}</table>"
    return f"<b>{html.escape(head)}</b>{table}{rule}{_curve(arms)}"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _curve(arms: dict[str, RunResult]) -> str:
    """The mean of the figure that counts by round, from 0 to 1, as a picture that needs no script."""
    parts = []
    main = next(iter(arms.values())).main_figure
    last = max((arm.round for arm in arms.values()), default=0) or 1
    for place, (name, arm) in enumerate(arms.items()):
        table = arm.evaluations()
        means = [nanmean(row.clip(0.0, 1.0)) for row in table[f"test_{main}"]]
        points = [
            (MARGIN + (WIDTH - MARGIN) * number / last, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * mean)
            for number, mean in zip(table.rounds.tolist(), means, strict=True)
            if not isnan(mean)
        ]
        colour = COLOURS[place % len(COLOURS)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{MARGIN + 110 * place}" y="14" fill="{colour}">{html.escape(name)}</text>')
    for share in (0, 0.5, 1):
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share
        parts.append(f'<text x="0" y="{y + 4:.0f}" fill="#888">{100 * share:.0f} %</text>')
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#8884"/>')
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 14}" text-anchor="end" fill="#888">round {last}</text>')
    title = f"<title>mean test {figure_name(main)} by round</title>"
    return f'<svg role="img" width="{WIDTH}" height="{HEIGHT}" font-size="12">{title}{"".join(parts)}</svg>'
