"""Presets: the experiments of the paper as TOML files, their methods, and the scales they run at."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from peermask.errors import ConfigError, nearest
from peermask.registry import Options

ScaleName = Literal["paper", "quick"]
Figure = Literal["none", "rounds", "bytes", "bytes-a-link", "columns", "agents", "masks", "filters"]
Table = dict[str, Any]  # a part of a config, as in a config file

# The order in which `all` and `--list` go through them.
NAMES = (
    "table1",
    "table2",
    "table3",
    "convergence",
    "cost1",
    "cost2",
    "dslth",
    "masks",
    "structure",
    "beyond",
    "table1-full",
    "held-out",
    "accord",
    "accord-100",
    "accord-nodes",
    "accord-more",
    "exchanges",
    "liars",
    "graphs",
)


class Scale(Options):
    """How large everything is: the config that every experiment starts from."""

    about: str
    seeds: int
    tuning_rounds: int
    config: Table


class Method(Options):
    label: str
    colour: str
    algorithm: Table
    grid: tuple[Table, ...] = Field(min_length=1)  # options of the algorithm
    starts: tuple[str, ...] = ()  # `frozen.init` to try with each of them; none: what the config says
    tuned_on: str
    tuned_for: Literal["short", "whole"] = "short"  # the scale's `tuning_rounds`, or as many rounds as the experiment
    config: Table = Field(default_factory=dict)
    scale: dict[ScaleName, Table] = Field(default_factory=dict)

    @property
    def candidates(self) -> list[Table]:
        """What may be chosen for the method, as parts of a config."""
        if not self.starts:
            return [{"algorithm": options} for options in self.grid]
        return [{"algorithm": options, "frozen": {"init": start}} for start in self.starts for options in self.grid]


class Column(Options):
    name: str
    config: Table = Field(default_factory=dict)


class Row(Options):
    name: str
    method: str
    group: str = ""  # rows of a group share a panel of a figure
    config: Table = Field(default_factory=dict)
    paper: tuple[float, ...] = ()  # the paper's figure in every column
    rank: int | None = None  # when to run: low ones first


class Preset(Options):
    """One experiment: every row in every column, with every seed."""

    title: str
    about: str
    rank: int
    figure: Figure = "none"
    paper_name: str = ""  # where in the paper its figures are
    config: Table = Field(default_factory=dict)
    scale: dict[ScaleName, Table] = Field(default_factory=dict)
    columns: tuple[Column, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)


@cache
def preset(name: str) -> Preset:
    if name not in NAMES:
        raise ConfigError(f"unknown experiment {name!r}; {nearest(name, (*NAMES, 'all'))}")
    return Preset.model_validate(_read(name))


@cache
def methods() -> dict[str, Method]:
    return {name: Method.model_validate(table) for name, table in _read("methods").items()}


@cache
def scales() -> dict[str, Scale]:
    return {name: Scale.model_validate(table) for name, table in _read("scales").items()}


def selected(names: tuple[str, ...]) -> tuple[str, ...]:
    """The experiments asked for, each once, in the order of `NAMES`; `all` and no name mean all."""
    for name in names:
        if name != "all":
            preset(name)
    return NAMES if not names or "all" in names else tuple(name for name in NAMES if name in names)


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> Table:
    """`change` over `base`, table by table; another `name` is another choice, whose options start afresh."""
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("peermask.reproduce").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8"))
