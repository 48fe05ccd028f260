"""The authors' released inputs, from a folder of files that the test writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from peermask.data.partition import by_counts
from peermask.errors import PeermaskError
from peermask.paper import preset as presets
from peermask.paper.cells import AGENTS, Cell, Defaults, add_released, tuning_cell
from peermask.paper.preset import preset, scales
from peermask.run.build import build
from peermask.streams import stream


@pytest.fixture(autouse=True)
def _own_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "_own", {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ring, and labels i, i + 1, ... for agent i, with 10 samples of each."""
    (tmp_path / "Data").mkdir()
    ring = [[int((i - j) % AGENTS in (1, AGENTS - 1)) for j in range(AGENTS)] for i in range(AGENTS)]
    write(tmp_path / "20_adj_matrix.txt", ring)
    for labels in (3, 4, 5):
        held = [[(agent + k) % 10 for k in range(labels)] for agent in range(AGENTS)]
        write(tmp_path / "Data" / f"CategoryToClients{labels}.txt", held)
        write(tmp_path / "Data" / f"LocalDist_niid{labels}.txt", [[10 * (k in own) for k in range(10)] for own in held])
    return tmp_path


def write(path: Path, rows: list[list[int]]) -> None:
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))


def defaults() -> Defaults:
    return Defaults("quick", scales()["quick"])


def test_a_column_follows_each_of_the_papers(folder: Path) -> None:
    add_released(["table1", "dslth"], folder)
    assert [column.name for column in preset("table1").columns[:3]] == ["c = 3", "c = 3, released", "c = 4"]
    assert preset("table1").rows[0].paper[:3] == (0.6218, 0.6218, 0.5811)
    assert tuning_cell("dsgd", 0).of_column.name == "c = 4"
    assert len(preset("dslth").columns) == 1


def test_a_run_is_named_by_content_and_uses_the_files(folder: Path, tmp_path: Path) -> None:
    def job(where: Path) -> str:
        presets._own.clear()
        add_released(["table2"], where)
        made = defaults().job(Cell("table2", 1, 1, 0), {"algorithm": {"lr": 1.0}})
        assert made.config.graph.options.path == str(where / "20_adj_matrix.txt")  # type: ignore[attr-defined]
        return made.key

    moved = tmp_path / "moved"
    moved.mkdir()
    for path in [*folder.glob("*.txt"), *folder.glob("Data/*.txt")]:
        (moved / path.name).write_bytes(path.read_bytes())
    assert job(folder) == job(moved)
    (moved / "20_adj_matrix.txt").write_bytes((moved / "20_adj_matrix.txt").read_bytes().replace(b"0 ", b"0  "))
    assert job(folder) != job(moved)
    made = build(defaults().job(Cell("table2", 1, 1, 0), {"algorithm": {"lr": 1.0}}).config)
    assert made.samples[4].labels == (4, 5, 6)


def test_counts_are_taken_in_order_and_scaled_where_there_are_too_few() -> None:
    """Six samples of label 0, four of label 1: agents want 2, 1 of the former and 6, 2 of the latter."""
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 0])
    path = Path("counts.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peermask.data.partition.read_counts", lambda *_: np.array([[2, 6], [1, 2]]))
        first, second = by_counts(labels, 2, stream(0, "partition"), path=str(path))
    assert first.tolist() == [0, 1, 2, 3, 5]
    assert second.tolist() == [4, 7]


@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        ("20_adj_matrix.txt", 0, "0 1", "line 1: 2 numbers; a matrix of 20 agents has 20"),
        ("20_adj_matrix.txt", 0, " ".join("0" * 20), "line 2: entry 0 is 1, but agent 0 has 0 for agent 1"),
        ("Data/CategoryToClients3.txt", 2, "2 3 10", "agent 2 has '10'; give whole numbers from 0 to 9"),
        ("Data/CategoryToClients3.txt", 2, "2 3 3", r"agent 2 has labels \[2, 3\]; give 3 different ones"),
        ("Data/CategoryToClients3.txt", 2, "2 3 5", r"samples of labels \[2, 3, 4\], but CategoryToClients3.txt says"),
        ("Data/LocalDist_niid3.txt", 2, "2 3 -1", "agent 2 has 3 numbers, agent 0 has 10"),
        ("Data/LocalDist_niid3.txt", 0, "0 0 0 0 0 0 0 0 0 x", "agent 0 has 'x'; give whole numbers"),
        ("Data/LocalDist_niid3.txt", 0, "", "has 19 lines of numbers; there are 20 agents"),
    ],
)
def test_mistakes_in_the_files(folder: Path, file: str, line: int, text: str, message: str) -> None:
    lines = (folder / file).read_text().splitlines()
    lines[line] = text
    (folder / file).write_text("\n".join(lines))
    with pytest.raises(PeermaskError, match=message) as caught:
        add_released(["table1"], folder)
    assert "\n" not in str(caught.value)


def test_missing_files_and_a_graph_in_two_parts(folder: Path) -> None:
    (folder / "Data" / "LocalDist_niid4.txt").unlink()
    with pytest.raises(PeermaskError, match=r"no LocalDist_niid4\.txt there or in its Data"):
        add_released(["table1"], folder)
    pairs = [[int(j == i ^ 1) for j in range(AGENTS)] for i in range(AGENTS)]
    write(folder / "20_adj_matrix.txt", pairs)
    with pytest.raises(PeermaskError, match="cannot reach the others"):
        add_released(["table1"], folder)
    with pytest.raises(PeermaskError, match="no column of dslth has"):
        add_released(["dslth"], folder)
