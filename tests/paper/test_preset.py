"""The experiments of the paper as they are written down."""

import pytest

from peermask.errors import ConfigError
from peermask.paper.cells import Defaults, cells_of, tuning_cell
from peermask.paper.preset import NAMES, ScaleName, merge, methods, preset, scales, selected


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_whole(name: str) -> None:
    shape = preset(name)
    for row in shape.rows:
        assert row.method in methods()
        assert len(row.paper) in (0, len(shape.columns))
    assert len({row.name for row in shape.rows}) == len(shape.rows)
    assert bool(shape.paper_name) == any(row.paper for row in shape.rows) or name == "beyond"


@pytest.mark.parametrize("scale", ["paper", "quick"])
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_valid_config_with_everything_its_method_may_be_tuned_to(name: str, scale: ScaleName) -> None:
    defaults = Defaults(scale, scales()[scale])
    for cell in cells_of(name, [0]):
        for candidate in cell.method.candidates:
            config = defaults.job(cell, candidate).config
            assert config.algorithm.name == cell.method.algorithm["name"]
            row = cell.of_row.config.get("algorithm", {})  # which has the last word
            assert config.algorithm.table().items() >= {**candidate["algorithm"], **row}.items()
            assert "frozen" not in candidate or config.frozen.init == candidate["frozen"]["init"]


def test_every_method_is_tuned_on_an_experiment_that_has_it() -> None:
    for name in methods():
        assert tuning_cell(name, 0).of_row.method == name


def test_a_label_has_one_colour() -> None:
    colours = {method.label.removesuffix(", best"): method.colour for method in methods().values()}
    for method in methods().values():
        assert colours[method.label.removesuffix(", best")] == method.colour


def test_the_papers_own_figures() -> None:
    paper = {(name, row.name): row.paper for name in ("table1", "table2", "table3") for row in preset(name).rows}
    assert paper["table1", "MCE-PL (0.5)"] == (0.7603, 0.6943, 0.6244)
    assert paper["table2", "ind-mask"] == (0.6808, 0.6140, 0.5413)
    assert paper["table2", "Dis-PFL"] == (0.5742, 0.5609, 0.5617)
    assert paper["table3", "MCE-PL"] == (0.6394, 0.6489, 0.6451, 0.6476)


def test_the_papers_setting() -> None:
    defaults = Defaults("paper", scales()["paper"])
    config = defaults.job(cells_of("table2", [0])[1], {"algorithm": {"lr": 1.0}}).config
    assert (config.agents, config.rounds, config.batch_size, config.data.fraction) == (20, 400, 128, 0.2)
    assert sum(config.retention) / 20 == pytest.approx(0.255)  # type: ignore[arg-type]
    assert config.partition.options.labels_per_agent == 4  # type: ignore[attr-defined]


def test_another_choice_starts_with_its_own_options() -> None:
    base = {"graph": {"name": "erdos-renyi", "p": 0.5}, "data": {"fraction": 0.2, "flip": False}}
    changed = merge(base, {"graph": {"name": "ring"}, "data": {"flip": True}})
    assert changed == {"graph": {"name": "ring"}, "data": {"fraction": 0.2, "flip": True}}
    assert base["graph"] == {"name": "erdos-renyi", "p": 0.5}


def test_names_are_selected_once_in_the_order_given() -> None:
    assert selected(("cost1", "table1", "cost1")) == ("cost1", "table1")
    assert selected(("cost1", "all")) == ("cost1", *(name for name in NAMES if name != "cost1"))
    assert selected(()) == selected(("all",)) == NAMES
    with pytest.raises(ConfigError, match="unknown experiment 'tabel1'; did you mean 'table1'"):
        selected(("tabel1",))


def test_methods_of_a_table_try_as_many_settings_over_as_many_rounds() -> None:
    for name in (name for name in NAMES if name not in ("accord-easy", "dslth")):
        used = [methods()[row.method] for row in preset(name).rows]
        for kind in ("short", "half"):
            same = [method for method in used if method.tuned_for == kind and len(method.candidates) > 1]
            assert len({(len(method.candidates), method.output_tuned) for method in same}) <= 1, name


def test_a_method_may_be_tuned_on_another_experiment() -> None:
    assert methods()["dsgd-best@fashion"].tuned_on == "fashion"
    assert methods()["dsgd-best@fashion"].candidates == methods()["dsgd-best"].candidates
