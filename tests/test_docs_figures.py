"""Tables in the documentation have the figures of results/."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.docs_figures import BLOCK, PAGES, rewritten, table

LINES = """experiment,row,column,mean,weighted,stuck,kilobytes_a_message
tiny,a,c = 3,0.12345,0.2,0,1.0
tiny,a,c = 4,0.5,0.6,20,2.0
tiny,b,c = 3,0.25,0.35,,
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_the_figures_of_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rewritten(text) == text, "run python -m benchmarks.docs_figures"


def test_there_are_tables_to_compare() -> None:
    assert sum(len(BLOCK.findall(page.read_text(encoding="utf-8"))) for page in PAGES) >= 5


def test_a_table_by_hand(tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text(LINES)
    spec = {
        "from": ["tiny"],
        "columns": {"c = 3": ["mean", "weighted"], "c = 4": "mean"},
        "also": {"kB": "kilobytes_a_message"},
    }
    assert table(spec, tmp_path).splitlines() == [
        "|  | c = 3 | c = 4 | kB |",
        "| --- | ---: | ---: | ---: |",
        "| a | 0.123 / 0.200 | 0.500 (20 stuck) | 1.5 |",
        "| b | 0.250 / 0.350 | - | - |",
    ]
