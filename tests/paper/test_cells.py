"""Which run a cell is, and which comes first."""

from tiny_scale import tiny_defaults

from peermask.paper.cells import Cell, by_value, cells_of
from peermask.paper.preset import NAMES


def test_experiments_share_the_runs_they_have_in_common() -> None:
    defaults, chosen = tiny_defaults(), {"algorithm": {"lr": 1.0}}
    in_table2, in_table3, in_convergence = (
        Cell("table2", 0, 1, 0),
        Cell("table3", 0, 2, 0),
        Cell("convergence", 0, 0, 0),
    )
    assert len({defaults.job(cell, chosen).key for cell in (in_table2, in_table3, in_convergence)}) == 1


def test_seeds_rows_and_columns_are_all_different_runs() -> None:
    defaults = tiny_defaults()
    cells = cells_of("table2", [0, 1])
    assert len({defaults.job(cell, {"algorithm": {"lr": 1.0}}).key for cell in cells}) == len(cells) == 42


def test_accord_and_the_papers_comparison_come_first_and_no_seed_waits_for_all_others() -> None:
    ordered = by_value([cell for name in NAMES for cell in cells_of(name, [0, 1, 2])], [0, 1, 2])
    assert {(cell.experiment, cell.of_row.name) for cell in ordered[:12]} == {("accord", "accord")}
    first = ordered[12:30]
    assert {cell.of_row.method for cell in first} == {"mce-pl", "ind-mask"}
    assert {cell.experiment for cell in first} == {"table1", "table2"}
    assert {cell.seed for cell in first} == {0}
    places = {cell: place for place, cell in enumerate(ordered)}
    assert places[Cell("table1", 9, 0, 2)] < places[Cell("beyond", 0, 0, 0)] < places[Cell("beyond", 0, 0, 1)]


def test_experiments_named_first_come_before_all_others_one_after_another() -> None:
    names, seeds = ("liars", "table1", "accord"), (0, 1)
    ordered = by_value([cell for name in names for cell in cells_of(name, seeds)], seeds, ("liars", "accord"))
    assert list(dict.fromkeys(cell.experiment for cell in ordered)) == ["liars", "accord", "table1"]
    assert {(cell.of_row.name, cell.seed) for cell in ordered[60:68]} == {("accord", 0), ("accord", 1)}
