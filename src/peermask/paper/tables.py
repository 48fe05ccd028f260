"""An experiment as tables: what is finished, against the paper, in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from peermask.paper.campaign import Campaign
from peermask.paper.differences import Difference, paired_difference
from peermask.paper.outcome import Summary, summarise
from peermask.paper.preset import Preset, methods, preset
from peermask.paper.tuning import format_choice
from peermask.store.table import REPORTED

MISSING = "-"
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


def grid(campaign: Campaign, name: str) -> Grid:
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


def number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    return MISSING if value is None else f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def with_deviation(summary: Summary) -> str:
    """`0.749 ± 0.004`, marked where seeds diverged."""
    if summary.mean is None:
        return "diverged" if summary.diverged else MISSING
    spread = "" if summary.deviation is None else f" ± {number(summary.deviation)}"
    lost = f" ({summary.diverged} diverged)" if summary.diverged else ""
    return f"{number(summary.mean)}{spread}{lost}"


def markdown(campaign: Campaign, made: Grid, figure: str | None) -> str:
    shape = made.preset
    seeds = ", ".join(map(str, campaign.seeds))
    name, scale = campaign.defaults.name, campaign.defaults.scale
    note = note_of(campaign, shape)
    lines = [
        f"# {shape.title}",
        "",
        shape.about,
        f"Scale `{name}`: {scale.about}. Mean ± standard deviation over seeds {seeds}.",
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
        paper = "" if entry.paper is None else f" ({number(entry.paper)}, {number(entry.difference, sign=True)})"
        return with_deviation(entry.summary) + paper

    rows = [[entries[0].row, *map(cell, entries)] for entries in made.entries]
    return markdown_table(["accuracy" + against, *(column.name for column in made.preset.columns)], rows)


def _difference_table(made: Grid) -> list[str]:
    rows = [
        [entries[0].row, *(with_interval(entry.gain) for entry in entries)]
        for entries in made.entries
        if any(entry.gain for entry in entries)
    ]
    if not rows:
        return []
    table = markdown_table(["", *(column.name for column in made.preset.columns)], rows)
    return [f"{made.preset.compared} minus the other rows: {PAIRED}", "", *table, ""]


def with_interval(gain: Difference | None) -> str:
    """`+0.020 (+0.011, +0.029)`."""
    if gain is None:
        return MISSING
    mean, low, high = (number(value, sign=True) for value in gain)
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
        [entry.row, entry.column, *(number(getattr(entry.summary, name), digits) for name, digits in columns.values())]
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


def latex(made: Grid) -> str:
    """A tabular with ours, also among own labels, the paper's figure and the difference under every column."""
    shape = made.preset
    has_paper = any(row.paper for row in shape.rows)
    parts = ["ours", *(["own labels"] if made.has_own else []), *(["paper", "diff."] if has_paper else [])]
    width = len(parts)
    lines = [
        f"% {shape.title}: {shape.about}",
        rf"\begin{{tabular}}{{l{('|' + 'r' * width) * len(shape.columns)}}}",
        r"\hline",
        " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{_tex(column.name)}}}" for column in shape.columns)])
        + r" \\",
    ]
    if width > 1:
        lines.append(" & ".join(["", *(" & ".join(parts) for _ in shape.columns)]) + r" \\")
    lines.append(r"\hline")
    for entries in made.entries:
        cells = [_tex(entries[0].row)]
        for entry in entries:
            cells.append(_tex(with_deviation(entry.summary)))
            if made.has_own:
                cells.append(_tex(number(entry.summary.own_labels)))
            if has_paper:
                cells += [_tex(number(entry.paper)), _tex(number(entry.difference, sign=True))]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    for plain, escaped in (("_", r"\_"), ("%", r"\%"), ("±", r"$\pm$"), ("−", "$-$")):
        text = text.replace(plain, escaped)
    return text


def comma_separated(made: Grid) -> str:
    """One line a cell, with every figure."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    figures = tuple(Summary.model_fields)
    table.writerow(["experiment", "row", "column", *figures, "paper", "difference", "gain", "gain_low", "gain_high"])
    for entries in made.entries:
        for entry in entries:
            values = [getattr(entry.summary, name) for name in figures]
            shown = [_plain(value) for value in (*values, entry.paper, entry.difference, *(entry.gain or (None,) * 3))]
            table.writerow([made.name, entry.row, entry.column, *shown])
    return text.getvalue()


def _plain(value: float | int | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"
