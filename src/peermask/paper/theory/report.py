"""The study as a reader sees it: tables on a terminal, and a Markdown report with figures in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from peermask.errors import RunError
from peermask.files import write_atomically
from peermask.paper.drawing import blank
from peermask.paper.theory.figures import CAPTIONS, SIZE, figures
from peermask.paper.theory.study import Scale, Study, run_study
from peermask.paper.theory.tables import Table, tables

REPORT = "theory.md"


def theory_report(out: Path | None, scale: Scale, seed: int, said: Callable[[str], None]) -> Study:
    """Run the study and, where `out` is given, write its report there; what would prevent that is found first."""
    if out is not None:
        blank(1, 1, SIZE)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {out}: {error.strerror}; give another --out") from error
    study = run_study(scale, seed, said)
    if out is not None:
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
    lines = [
        f"\n## {table.title}\n",
        "| " + " | ".join(table.columns) + " |",
        "|" + " --- |" * len(table.columns),
        *("| " + " | ".join(row) + " |" for row in table.rows),
        f"\n{table.meaning}\n",
    ]
    return "\n".join(lines)
