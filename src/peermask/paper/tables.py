"""An experiment as tables: what is finished, against the paper, and differences between rows, with an interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from peermask.paper.campaign import Campaign
from peermask.paper.cells import cells_of
from peermask.paper.outcome import Outcome, Summary, summarise
from peermask.paper.preset import Preset, methods, preset
from peermask.paper.tuning import format_choice
from peermask.store.table import REPORTED, Floats
from peermask.streams import stream

MISSING = "-"
DRAWS = 2000  # of the bootstrap
LEVEL = 0.95
OTHER_DATA = "The paper's figures are of CIFAR-10 and its own network: here they show where a difference would stand."
SEEDS = "Thick lines are medians over seeds, thin lines the seeds."
CAPTIONS = {
    "rounds": ("", SEEDS),
    "bytes": ("", SEEDS),
    "bytes-a-link": ("", SEEDS),
    "bars": ("", "Bars are means over seeds, with their standard deviation."),
    "agents": ("", "The first seed."),
    "masks": ("", "The first seed; on the right two filters of agents 4 and 8, which keep as many weights."),
}
PAIRED = (
    "mean over seeds and agents, each agent compared with itself, and a 95 % interval that resamples seeds and agents. "
    "An interval with 0 in it is no evidence of a difference."
)
STUCK = (
    "Half-way: accuracy after half of the rounds. Stuck: agents, of all seeds together, that came to no more than one "
    "answer for every image gets. Codec: version of the frames that were counted; bytes of two versions do not compare."
)
READOUTS = (
    "All labels, own labels: accuracy with answers among all labels, as in the paper, and among those an agent trains "
    "on. Weighted: the accuracy above, labels weighted as in the agent's training data."
)


class Difference(NamedTuple):
    mean: float
    low: float
    high: float


def paired_difference(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Difference | None:
    """Average d_si = a_si - b_si over the seeds s that both rows have and their agents i; None without a pair.

    An agent has the same data and neighbours in both rows. The interval resamples seeds, and in each of them agents.
    """
    others = {outcome.config.get("seed"): outcome.by_agent for outcome in theirs}
    pairs = [(outcome.by_agent, others.get(outcome.config.get("seed"))) for outcome in ours]
    gains = [a - b for a, b in pairs if a is not None and b is not None and len(a) == len(b)]
    if not gains or len({len(gain) for gain in gains}) > 1:
        return None
    low, high = bootstrap(np.array(gains))
    return Difference(float(np.mean(gains)), low, high)


def bootstrap(gains: Floats) -> tuple[float, float]:
    """Percentile interval of the mean of [S, N] over drawn seeds, and agents drawn within each."""
    seeds, agents = gains.shape
    draw = stream(0, "bootstrap")
    which = (draw.uniform(DRAWS * seeds) * seeds).astype(int).reshape(DRAWS, seeds, 1)
    who = (draw.uniform(DRAWS * seeds * agents) * agents).astype(int).reshape(DRAWS, seeds, agents)
    low, high = np.quantile(gains[which, who].mean((1, 2)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Entry:
    """One cell of a table, over its seeds."""

    row: str
    column: str
    paper: float | None
    summary: Summary
    gain: Difference | None = None  # of the row that others are compared with over this one

    @property
    def difference(self) -> float | None:
        if self.paper is None or self.summary.mean is None:
            return None
        return self.summary.mean - self.paper


@dataclass(frozen=True)
class Grid:
    """All cells of an experiment."""

    name: str
    entries: tuple[tuple[Entry, ...], ...]  # row by row

    @property
    def preset(self) -> Preset:
        return preset(self.name)

    @property
    def has_own(self) -> bool:
        """Whether any run measured answers among own labels; those of earlier versions did not."""
        return any(entry.summary.own_labels is not None for entries in self.entries for entry in entries)


def make_grid(campaign: Campaign, name: str) -> Grid:
    shape = preset(name)
    best = next((place for place, row in enumerate(shape.rows) if row.name == shape.compared), None)
    outcomes = {
        (line, place): campaign.outcomes(name, line, place)
        for line in range(len(shape.rows))
        for place in range(len(shape.columns))
    }
    return Grid(
        name,
        tuple(
            tuple(
                Entry(
                    row.name,
                    column.name,
                    row.paper[place] if row.paper else None,
                    summarise(outcomes[line, place]),
                    None if best in (None, line) else paired_difference(outcomes[best, place], outcomes[line, place]),
                )
                for place, column in enumerate(shape.columns)
            )
            for line, row in enumerate(shape.rows)
        ),
    )


def format_number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    return MISSING if value is None else f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def format_mean(summary: Summary) -> str:
    """`0.749 ± 0.004`, marked where seeds diverged."""
    if summary.mean is None:
        return "diverged" if summary.diverged else MISSING
    spread = "" if summary.deviation is None else f" ± {format_number(summary.deviation)}"
    lost = f" ({summary.diverged} diverged)" if summary.diverged else ""
    return f"{format_number(summary.mean)}{spread}{lost}"


def format_page(campaign: Campaign, made: Grid, figure: str | None) -> str:
    shape = made.preset
    seeds = ", ".join(map(str, campaign.seeds))
    name, note = campaign.defaults.name, note_of(campaign, shape)
    lines = [
        f"# {shape.title}",
        "",
        shape.about,
        f"{_scale(campaign, made.name)} Mean ± standard deviation over seeds {seeds}.",
        f"An accuracy is the mean over agents and over {REPORTED}.",
        *([OTHER_DATA] if shape.paper_name and name != "paper" else []),
        "",
        *_accuracy_table(made),
        *(["", note] if note else []),
        "",
        *_difference_table(made),
        *_detail_table(made),
        "",
        STUCK,
        *([READOUTS] if made.has_own else []),
        "",
        *_choices(campaign, shape),
    ]
    if figure is not None:
        lines += ["", f"![{shape.title}]({figure})", *CAPTIONS.get(shape.figure, ())]
    return "\n".join(lines) + "\n"


def _scale(campaign: Campaign, name: str) -> str:
    """What the scale stands for, unless the experiment names data of its own."""
    defaults = campaign.defaults
    used = {defaults.table(cell, {})["dataset"]["name"] for cell in cells_of(name, (0,))}
    about = f": {defaults.scale.about}" if defaults.scale.config["dataset"]["name"] in used else ""
    return f"Scale `{defaults.name}`{about}."


def note_of(campaign: Campaign, shape: Preset) -> str:
    """What a table does not show at its scale."""
    return shape.notes.get(campaign.defaults.name, campaign.defaults.scale.note)


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table whose first `left` columns are text, the others numbers."""
    rule = ["---" if place < left else "---:" for place in range(len(heading))]
    return [f"| {' | '.join(cells)} |" for cells in (heading, rule, *rows)]


def _accuracy_table(made: Grid) -> list[str]:
    against = f" ({made.preset.paper_name}, difference)" if made.preset.paper_name else ""

    def cell(entry: Entry) -> str:
        mean = format_mean(entry.summary)
        if entry.paper is None:
            return mean
        return f"{mean} ({format_number(entry.paper)}, {format_number(entry.difference, sign=True)})"

    rows = [[entries[0].row, *map(cell, entries)] for entries in made.entries]
    return markdown_table(["accuracy" + against, *(column.name for column in made.preset.columns)], rows)


def _difference_table(made: Grid) -> list[str]:
    rows = [
        [entries[0].row, *(format_interval(entry.gain) for entry in entries)]
        for entries in made.entries
        if any(entry.gain for entry in entries)
    ]
    if not rows:
        return []
    table = markdown_table(["", *(column.name for column in made.preset.columns)], rows)
    return [f"{made.preset.compared} minus the other rows: {PAIRED}", "", *table, ""]


def format_interval(gain: Difference | None) -> str:
    """`+0.020 (+0.011, +0.029)`."""
    if gain is None:
        return MISSING
    mean, low, high = (format_number(value, sign=True) for value in gain)
    return f"{mean} ({low}, {high})"


_DETAILS = {  # heading -> figure of a summary, and digits after the point
    "seeds": ("seeds", 0),
    "half-way": ("half_way", 3),
    "last round": ("last", 3),
    "worst agent": ("worst", 3),
    "stuck agents": ("stuck", 0),
    "before mixing": ("unmixed", 3),
    "share of weights used": ("density", 3),
    "MB sent": ("megabytes", 2),
    "MB a link": ("megabytes_a_link", 2),
    "kB a message": ("kilobytes_a_message", 2),
    "codec": ("codec", 0),
    "MB, paper's count": ("paper_megabytes", 2),
    "MB, authors' code's count": ("ones_megabytes", 2),
}
_READOUTS = {"all labels": ("all_labels", 3), "own labels": ("own_labels", 3), "weighted": ("weighted", 3)}


def _detail_table(made: Grid) -> list[str]:
    columns = {**_DETAILS, **(_READOUTS if made.has_own else {})}
    rows = [
        [
            entry.row,
            entry.column,
            *(format_number(getattr(entry.summary, name), digits) for name, digits in columns.values()),
        ]
        for entries in made.entries
        for entry in entries
    ]
    return markdown_table(["method", "", *columns], rows, left=2)


def _choices(campaign: Campaign, shape: Preset) -> list[str]:
    lines = ["Chosen on held-out training data (see choices.json):", ""]
    for name in dict.fromkeys(row.method for row in shape.rows):
        chosen = campaign.tuning.chosen(name)
        lines.append(f"- {methods()[name].label} (`{name}`): {MISSING if chosen is None else format_choice(chosen)}")
    return lines
