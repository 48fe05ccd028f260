"""Configs: defaults, and a config as a table and as a file."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import tomli_w

from peermask.config.file import load_config, make_config
from peermask.errors import ConfigError
from peermask.run.runner import run_experiment


def test_the_default_experiment_compares_accord_with_ind_mask() -> None:
    config = load_config()
    assert (config.agents, config.dataset.name) == (10, "digits")
    assert list(config.arms()) == ["accord", "ind-mask"]
    assert {arm.readout_for("classification") for arm in config.arms().values()} == {"all"}


def test_a_resolved_config_read_back_is_the_same(tmp_path: Path) -> None:
    config = load_config(
        overrides=["graph.name=ring", "retention=0.3", "algorithm.name=mce-pl", "algorithm.lr_fine_tune=0.5"]
    )
    path = tmp_path / "resolved.toml"
    path.write_text(tomli_w.dumps(config.table()))
    assert load_config(path) == config
    assert load_config(path).hash == config.hash


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("rounds=7", lambda c: c.rounds == 7),
        ("algorithm.lr=0.1", lambda c: c.algorithm.options.lr == 0.1),
        ("graph.name=ring", lambda c: c.graph.name == "ring"),
        ("graph=ring", lambda c: c.graph.name == "ring"),
        ("graph.p=0.9", lambda c: c.graph.options.p == 0.9),
        ("retention=[0.1,0.2,0.1,0.2,0.1,0.2,0.1,0.2,0.1,0.2]", lambda c: c.retention[1] == 0.2),
        ("retention={choices=[0.1,0.5]}", lambda c: c.retention.choices == (0.1, 0.5)),
        ("mask.fc_keep=r", lambda c: c.mask.fc_keep == "r"),
        ("compare=[]", lambda c: c.compare == ()),
    ],
)
def test_overrides(override: str, read: Any) -> None:
    assert read(load_config(overrides=[override]))


def test_naming_another_choice_drops_the_options_of_the_one_before() -> None:
    config = load_config(overrides=["graph.degree=2", "graph.name=random-regular"])
    assert config.graph.table() == {"name": "random-regular", "degree": 2}


def test_files_that_are_missing_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        load_config(tmp_path / "nowhere.toml")
    with pytest.raises(
        ConfigError, match=r"is a folder; give a TOML file, such as .*/config\.toml of a run, or resume"
    ):
        load_config(tmp_path)
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\xff")
    with pytest.raises(ConfigError, match=r"picture\.png is not text; give a TOML file"):
        load_config(picture)
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML: .*line 1"):
        load_config(broken)


def test_an_override_without_a_value() -> None:
    with pytest.raises(ConfigError, match="must be key=value"):
        load_config(overrides=["rounds"])
    with pytest.raises(ConfigError, match="rounds is 60, not a table"):
        load_config(overrides=["rounds.every=1"])
    with pytest.raises(ConfigError, match=r"--set compare\.dsgd\.lr: compare is a list; give all of it$"):
        load_config(overrides=["compare=['dsgd']", "compare.dsgd.lr=1"])


def test_two_arms_of_one_algorithm_have_names_of_their_own() -> None:
    config = make_config({"compare": [{"name": "mce-pl", "lr": 0.1}, {"name": "ind-mask"}]})
    assert list(config.arms()) == ["mce-pl", "mce-pl-2", "ind-mask"]


def test_masks_have_no_values_to_round() -> None:
    with pytest.raises(ConfigError, match="accord sends masks, one bit a weight, and no real values; leave it out"):
        make_config({"algorithm": "accord", "exchange": {"values": "float16"}})
    assert make_config({"algorithm": "dsgd", "exchange": {"values": "float16"}}).exchange is not None
    assert "exchange" not in make_config({"algorithm": "dsgd"}).table()


@pytest.mark.long
def test_accord_beats_chance_and_learning_alone_by_five_points_over_three_seeds(tmp_path: Path) -> None:
    together, alone = [], []
    for seed in range(3):
        config = load_config(overrides=[f"seed={seed}", "evaluation.every=60"])
        result = run_experiment(config, tmp_path / str(seed))
        together.append(result.mean_accuracy)
        alone.append(result.compared[0].mean_accuracy)
    chance = 1 / 5  # five labels an agent
    assert fmean(together) > chance + 0.5
    assert fmean(together) > fmean(alone) + 0.05
