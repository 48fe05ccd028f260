"""The study as a reader sees it: tables on a terminal, and a Markdown report with figures in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from peermask.errors import RunError
from peermask.files import write_atomically
from peermask.paper.drawing import blank, files_of, finish
from peermask.paper.tables import markdown_table
from peermask.paper.theory.study import LEVELS, Scale, Study, run_study
from peermask.paper.theory.tables import DELTA, Table, tables
from peermask.paper.theory.widths import needed_width, promised

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT = "theory.md"
SIZE = (6.4, 4.2)  # inches; a column and a half of a printed page
MARKERS = ("o", "s", "^", "D")  # shapes and greys tell the lines apart without colour
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#555555")
CAPTIONS = {
    "width": "The certified error of each draw of g against the width: it falls exponentially, so the width "
    "needed grows with the logarithm of 1/ε, as the lemma says.",
    "success": "How often both agents' error is at most ε, with 95 % intervals; the dashed lines are the lemma's "
    "promise 1 − δ, each from the width that suffices for its ε, with the least constant that contradicts no point.",
    "theorem": "For agents with more and more labels in common: the distance of the subnetworks (bars, from inf to "
    "sup) lies between the valid lower and the upper bound of Theorem 1 (brackets).",
    "overlap": "The share of kept entries that two masks have in common: at chance when every subset sum is solved "
    "to the last digit, far above when agent 2 stays near agent 1's mask.",
}


def theory_report(out: Path, scale: Scale, seed: int, said: Callable[[str], None]) -> Study:
    """Run the study and write its report to a folder; what would prevent that is found first."""
    blank(1, 1, SIZE)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {out}: {error.strerror}; give another --out") from error
    study = run_study(scale, seed, said)
    for name, content in figures(study).items():
        write_atomically(out / name, content)
    write_atomically(out / REPORT, markdown(study).encode())
    return study


def print_tables(study: Study, console: Console) -> None:
    for table in tables(study):
        grid = RichTable(title=table.title, title_justify="left", title_style="bold", show_edge=False)
        for number, column in enumerate(table.columns):
            words = " ".join([column, *(row[number] for row in table.rows)]).split()
            grid.add_column(column, justify="left" if number == 0 else "right", min_width=max(map(len, words)))
        for row in table.rows:
            grid.add_row(*(Text(cell, style="bold red" if cell == "NO" else "") for cell in row))
        console.print(grid)
        console.print(Text(table.meaning, style="dim"))
        console.print()


def markdown(study: Study) -> str:
    scale = study.scale
    chain = " → ".join(map(str, scale.channels))
    opening = (
        "# Distributed strong lottery tickets, measured\n\n"
        f"Two agents' targets of {len(scale.channels) - 1} layers ({chain} channels, kernels {scale.side} × "
        f"{scale.side}, {study.weights} weights, class F) are looked for inside one random network g of "
        f"{2 * (len(scale.channels) - 1)} layers. Seed {study.seed}; made by `peermask theory`. "
        "What it all means is explained in docs/theory.md.\n"
    )
    pictures = "".join(f"\n![{name}]({name}.png)\n\n{caption}\n" for name, caption in CAPTIONS.items())
    return opening + "".join(_markdown_table(table) for table in tables(study)) + "\n## Figures\n" + pictures


def _markdown_table(table: Table) -> str:
    return "\n".join([f"\n## {table.title}\n", *markdown_table(table.columns, table.rows), f"\n{table.meaning}\n"])


def figures(study: Study) -> dict[str, bytes]:
    """File name -> content, for each figure of CAPTIONS in each format."""
    files: dict[str, bytes] = {}
    for name, draw in zip(CAPTIONS, (_width, _success, _theorem, _overlap), strict=True):
        figure, panels = blank(1, 1, SIZE)
        axes: Axes = panels[0, 0]
        draw(axes, study)
        finish(axes, axes.get_xlabel(), axes.get_ylabel())
        files |= files_of(name, figure, dpi=200, svg_text="none")
    return files


def _width(axes: Axes, study: Study) -> None:
    widths = np.array(study.scale.widths)
    centre = [median(t.worst for t in study.trials if t.width == w) for w in widths]
    axes.semilogy(
        [t.width for t in study.trials],
        [t.worst for t in study.trials],
        ".",
        color="#999999",
        markersize=4,
        label="one draw of g",
    )
    axes.semilogy(widths, centre, "o-", color=COLOURS[0], label="median")
    guide = centre[-1] * (3 / 4) ** (widths - widths[-1])
    shown = guide <= max(centre)
    axes.semilogy(widths[shown], guide[shown], ":", color="black", label="slope (3/4)$^n$: one bit per product")
    lemma = [needed_width(study.constant, study.problems, eps, eps) for eps in LEVELS]
    axes.semilogy(lemma, LEVELS, "k^--", label=rf"lemma's $n$ for $\delta=\varepsilon$, $C={study.constant:.2f}$")
    axes.axhline(study.pair.seen[0].alpha_l / 2, color=COLOURS[1], linewidth=1)
    axes.annotate(
        r"$\alpha_l/2$: below, (26) says something",
        (0.99, study.pair.seen[0].alpha_l / 2),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=COLOURS[1],
    )
    axes.set_xlabel("hidden channels per output channel, $n = I_l / O_l$")
    axes.set_ylabel(r"certified error $\varepsilon = \max(\varepsilon_1, \varepsilon_2)$")
    axes.legend(frameon=False, fontsize=8)


def _success(axes: Axes, study: Study) -> None:
    fine = np.linspace(min(study.scale.widths), max(study.scale.widths) * 1.25, 400)
    for eps, marker, colour in zip(LEVELS, MARKERS, COLOURS, strict=True):
        rows = [row for row in study.successes if row.eps == eps]
        rate = np.array([row.rate for row in rows])
        low, high = np.array([row.interval for row in rows]).T
        axes.errorbar(
            [row.width for row in rows],
            rate,
            yerr=[np.maximum(rate - low, 0), np.maximum(high - rate, 0)],
            fmt=f"{marker}-",
            color=colour,
            capsize=2,
            linewidth=1,
            label=rf"$\varepsilon$ = {eps:g}",
        )
        promise = [promised(n, study.constant, study.problems, eps) for n in fine]
        axes.plot(fine, np.where(np.array(promise) > 0, promise, np.nan), "--", color=colour, linewidth=1.5)
    axes.plot([], [], "k--", label="the lemma's promise")
    axes.axhline(1 - DELTA, color="black", linewidth=0.6)
    axes.annotate(rf"$1-\delta = {1 - DELTA:g}$", (min(study.scale.widths), 1 - DELTA - 0.04), fontsize=8)
    axes.set_xlabel("hidden channels per output channel, $n = I_l / O_l$")
    axes.set_ylabel("fraction of draws that succeed")
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5)


def _theorem(axes: Axes, study: Study) -> None:
    for row in study.correlated:
        spot = row.shared + 0.11 * (row.seed - study.seed - (study.scale.pairs - 1) / 2)
        seen = row.seen
        first = row == study.correlated[0]
        axes.plot(
            [spot] * 2,
            [seen.inf, seen.sup],
            color=COLOURS[0],
            linewidth=4,
            solid_capstyle="butt",
            label="inf to sup of ‖g_m1 − g_m2‖" if first else None,
        )
        axes.plot(spot, seen.upper, "v", color=COLOURS[1], markersize=6, label="upper (25)" if first else None)
        label = "lower (26), valid form" if first else None
        axes.plot(spot, seen.lower, "^", color=COLOURS[2], markersize=6, label=label)
    axes.set_xticks(sorted({row.shared for row in study.correlated}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("labels the two agents share (of 3 each)")
    axes.set_ylabel("distance on the agents' data")
    axes.legend(frameon=False, fontsize=8)


def _overlap(axes: Axes, study: Study) -> None:
    widths = study.scale.widths
    seen = [median(t.common.jaccard for t in study.trials if t.width == w) for w in widths]
    blind = [median(t.common.jaccard_by_chance for t in study.trials if t.width == w) for w in widths]
    axes.plot(widths, seen, "o-", color=COLOURS[0], label="each solved to the last digit")
    axes.plot(widths, blind, "--", color="black", label="chance")
    for near, marker, colour in zip(study.near, MARKERS[1:], COLOURS[1:], strict=False):
        label = rf"near $m_1$: $\varepsilon_2 \leq$ {near.certified:.1g}"
        axes.plot(study.scale.width, near.common.jaccard, marker, color=colour, markersize=8, label=label)
    axes.set_ylim(0, 1)
    axes.set_xlabel("hidden channels per output channel, $n = I_l / O_l$")
    axes.set_ylabel("entries kept by both / by either")
    axes.legend(frameon=False, fontsize=8)
