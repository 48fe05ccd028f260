"""Outcomes of single runs become lines of one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from peermask.errors import RunError
from peermask.files import write_json
from peermask.paper.output_folder import fold, read_table


def test_files_become_lines_by_key_and_a_later_file_replaces_a_line(tmp_path: Path) -> None:
    files, table = tmp_path / "outcomes", tmp_path / "outcomes.jsonl"
    files.mkdir()
    assert read_table(table) == {}
    for key, accuracy in (("b", 0.5), ("a", 0.25)):
        write_json(files / f"{key}.json", {"accuracy": accuracy})
    fold(files, table)
    assert [line[:10] for line in table.read_text().splitlines()] == ['{"key": "a', '{"key": "b']
    assert read_table(table) == {"a": {"accuracy": 0.25}, "b": {"accuracy": 0.5}}
    assert list(files.iterdir()) == []
    write_json(files / "a.json", {"accuracy": 0.75})
    fold(files, table)
    assert read_table(table) == {"a": {"accuracy": 0.75}, "b": {"accuracy": 0.5}}


@pytest.mark.parametrize("line", ["{", "[1]", '{"accuracy": 1}', "3"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    table = tmp_path / "outcomes.jsonl"
    table.write_text('{"key": "a"}\n' + line + "\n")
    with pytest.raises(RunError, match=r"outcomes\.jsonl, line 2: damaged .*delete the line to run it again"):
        read_table(table)


def test_a_damaged_file_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"accuracy": 0.25})
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(RunError, match=r"b\.json is damaged"):
        fold(tmp_path, tmp_path / "outcomes.jsonl")
    assert (tmp_path / "a.json").is_file()
