"""Tables in the documentation that come from results/: `python -m benchmarks.docs_figures` writes them again.

A table stands between two comments. The first says what it shows; a test compares every table with results/:

    <!-- table {"from": ["collaboration/accord"], "show": "last", "columns": ["c = 3"], "rows": ["accord"]} -->
    <!-- end of table -->

`from` names experiments by their folder in results/, `show` one or several columns of their .csv files, `columns` and
`rows` what to take: all by default. A column may show something else (`"columns": {"Dirichlet(0.3)": "weighted"}`),
and `also` adds means over the columns taken (`"also": {"kB a message": "kilobytes_a_message"}`).
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from peermask.paper.tables import markdown_table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- table (\{.*?\}) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
MISSING = "-"

Cells = dict[tuple[str, str], dict[str, str]]  # row and column -> a line of the .csv file


def table(spec: dict[str, Any], results: Path = ROOT / "results") -> str:
    """The Markdown table of a specification."""
    cells: Cells = {}
    for name in spec["from"]:
        with (results / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            cells.update({(line["row"], line["column"]): line for line in csv.DictReader(file)})
    wanted = spec.get("columns", list(dict.fromkeys(column for _, column in cells)))
    columns = wanted if isinstance(wanted, dict) else dict.fromkeys(wanted, spec["show"])
    rows = spec.get("rows", list(dict.fromkeys(row for row, _ in cells)))
    also: dict[str, str] = spec.get("also", {})
    head = [spec.get("title", ""), *columns, *also]
    lines = []
    for row in rows:
        shown = [_text(cells.get((row, column)), show) for column, show in columns.items()]
        lines.append([row, *shown, *(_mean(cells, row, list(columns), name) for name in also.values())])
    return "\n".join([*markdown_table(head, lines), ""])


def _text(cell: dict[str, str] | None, show: str | list[str]) -> str:
    names = [show] if isinstance(show, str) else show
    if cell is None or not cell[names[0]]:
        return MISSING
    stuck = int(cell["stuck"] or 0)
    note = f" ({stuck} stuck)" if stuck else ""
    return " / ".join(_number(float(cell[name])) for name in names) + note


def _number(value: float) -> str:
    """An accuracy has three decimals, megabytes one."""
    return f"{value:.3f}" if value < 1 else f"{value:,.1f}"


def _mean(cells: Cells, row: str, columns: list[str], name: str) -> str:
    known = [float(text) for column in columns if (text := cells.get((row, column), {}).get(name))]
    return f"{fmean(known):,.1f}" if known else MISSING


def rewritten(text: str) -> str:
    """A page with every table as results/ has it."""
    return BLOCK.sub(lambda found: found[1] + table(json.loads(found[2])) + found[4], text)


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := rewritten(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
