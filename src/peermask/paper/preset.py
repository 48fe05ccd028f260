"""Presets: experiments as TOML files, their methods, and the scales they run at. Users can add their own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from peermask.config.choice import first_problem
from peermask.config.file import read_toml
from peermask.errors import ConfigError, nearest
from peermask.registry import Options

ScaleName = Literal["paper", "quick"]
Figure = Literal["none", "rounds", "bytes", "bytes-a-link", "columns", "bars", "agents", "masks", "filters"]
ConfigPart = dict[str, Any]  # a part of a config, as in a config file

# The order in which `all` and `--list` go through them.
NAMES = (
    "table1", "table2", "table3", "convergence", "cost1", "cost2", "dslth", "masks", "structure", "beyond",
    "table1-full", "held-out", "accord", "accord-100", "accord-easy", "accord-nodes", "accord-more", "exchanges",
    "meanings", "liars", "graphs", "as-written", "sensitivity", "ablation", "fashion", "resnet", "heterofl",
    "fedpac",
)  # fmt: skip


class Scale(Options):
    """Scale of all experiments: the config that each starts from."""

    about: str
    note: str = ""  # under the tables of experiments that do not say what they show at this scale
    seeds: int
    tuning_rounds: int
    tuning_seeds: int = 1
    further_trials: int = 0  # of every method, after its grid
    config: ConfigPart


class Method(Options):
    label: str
    colour: str
    algorithm: ConfigPart
    grid: tuple[ConfigPart, ...] = Field(min_length=1)  # options of the algorithm
    searched: tuple[str, ...] = ("lr",)  # options that further trials change, one at a time
    starts: tuple[str, ...] = ()  # `frozen.init` to try with each of them; none: what the config says
    output_tuned: bool = False  # whether the best is tried again in the paper's network without its ELU on the logits
    tuned_on: str
    tuned_for: Literal["short", "half", "whole"] = "short"  # the scale's `tuning_rounds`, or parts of the experiment's
    config: ConfigPart = Field(default_factory=dict)
    scale: dict[ScaleName, ConfigPart] = Field(default_factory=dict)

    @property
    def candidates(self) -> list[ConfigPart]:
        """Candidates to tune the method with, as parts of a config."""
        if not self.starts:
            return [{"algorithm": options} for options in self.grid]
        return [{"algorithm": options, "frozen": {"init": start}} for start in self.starts for options in self.grid]


class Column(Options):
    name: str
    config: ConfigPart = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)  # hash, as `config` names a file -> where it is


class Row(Options):
    name: str
    method: str
    group: str = ""  # rows of a group share a panel of a figure
    config: ConfigPart = Field(default_factory=dict)
    scale: dict[ScaleName, ConfigPart] = Field(default_factory=dict)
    paper: tuple[float, ...] = ()  # the paper's figure in every column
    rank: int | None = None  # when to run: low ones first


class Preset(Options):
    """One experiment: every row in every column, with every seed."""

    title: str
    about: str
    rank: int
    figure: Figure = "none"
    paper_name: str = ""  # where in the paper its figures are
    drawn: str = ""  # the column of a figure that has one; the first by default
    compared: str = ""  # the row that others are compared with, seed by seed and agent by agent
    notes: dict[ScaleName, str] = Field(default_factory=dict)  # under the table, instead of the scale's
    config: ConfigPart = Field(default_factory=dict)
    scale: dict[ScaleName, ConfigPart] = Field(default_factory=dict)
    columns: tuple[Column, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)

    @property
    def drawn_column(self) -> int:
        return [column.name for column in self.columns].index(self.drawn) if self.drawn else 0

    @model_validator(mode="after")
    def _drawn_is_a_column(self) -> Preset:
        if self.drawn not in ("", *(column.name for column in self.columns)):
            raise ValueError(f"drawn = {self.drawn!r} is not the name of a column")
        return self


_own: dict[str, Preset] = {}  # that the user named in this process, and their methods
_own_methods: dict[str, Method] = {}


def preset(name: str) -> Preset:
    if name not in preset_names():
        raise ConfigError(f"unknown experiment {name!r}; {nearest(name, (*preset_names(), 'all'))}")
    return _own[name] if name in _own else _built_in(name)


def methods() -> dict[str, Method]:
    return {**_built_in_methods(), **_own_methods}


def preset_names() -> tuple[str, ...]:
    """Names of all experiments, the built-in ones first."""
    return tuple(dict.fromkeys((*NAMES, *_own)))


def add_columns(name: str, columns: tuple[Column, ...]) -> None:
    """Give an experiment these columns, in this process."""
    _own[name] = preset(name).model_copy(
        update={
            "columns": columns,
            "rows": tuple(row.model_copy(update={"paper": _papers(name, row, columns)}) for row in preset(name).rows),
        }
    )


def _papers(name: str, row: Row, columns: tuple[Column, ...]) -> tuple[float, ...]:
    """The paper's figures of a row: an added column has those of the one before it."""
    if not row.paper:
        return ()
    known = [column.name for column in preset(name).columns]
    figures: list[float] = []
    for column in columns:
        figures.append(row.paper[known.index(column.name)] if column.name in known else figures[-1])
    return tuple(figures)


def add_own(path: Path) -> str:
    """Read an experiment of the user's own, with the methods it has in `[methods.NAME]`; its name is the file's."""
    name, table = path.stem, read_toml(path)
    if name in (*NAMES, "all", "README", "choices"):
        raise ConfigError(f"{path}: {name!r} is the name of something else; rename the file")
    tables = table.pop("methods", {})
    if not isinstance(tables, Mapping) or not all(isinstance(each, Mapping) for each in tables.values()):
        raise ConfigError(f"{path}: methods must be tables [methods.NAME]")
    if taken := next((method for method in tables if method in _built_in_methods()), None):
        raise ConfigError(f"{path}: methods.{taken} is built in; give yours another name")
    try:
        content = Preset.model_validate({"about": "", "rank": 0, **table})
        own = {
            method: Method.model_validate({"label": method, "colour": "#444444", "tuned_on": name, **each})
            for method, each in tables.items()
        }
    except ValidationError as error:
        model = Method if error.title == Method.__name__ else Preset
        raise ConfigError(f"{path}: {first_problem(error, model)}") from None
    for row in content.rows:
        if row.method not in {**_built_in_methods(), **own}:
            raise ConfigError(f"{path}: unknown method {row.method!r}; {nearest(row.method, [*methods(), *own])}")
    for method, each in own.items():
        if each.tuned_on not in (*NAMES, name) or (
            each.tuned_on == name and method not in {row.method for row in content.rows}
        ):
            raise ConfigError(f"{path}: methods.{method} is tuned on {each.tuned_on!r}, which has no row of it")
    _own[name] = content
    _own_methods.update(own)
    return name


@cache
def _built_in(name: str) -> Preset:
    return Preset.model_validate(_read(name))


@cache
def _built_in_methods() -> dict[str, Method]:
    """Read the methods; NAME@EXPERIMENT, in an experiment's row, is the method NAME tuned on that experiment."""
    found = {name: Method.model_validate(table) for name, table in _read("methods").items()}
    for row in (row for name in NAMES for row in _built_in(name).rows if "@" in row.method):
        name, _, experiment = row.method.partition("@")
        found[row.method] = found[name].model_copy(update={"tuned_on": experiment})
    return found


@cache
def scales() -> dict[str, Scale]:
    return {name: Scale.model_validate(table) for name, table in _read("scales").items()}


def selected(names: tuple[str, ...]) -> tuple[str, ...]:
    """The experiments asked for, each once, in this order; `all` and no name mean all that are built in.

    A name that ends in .toml is a file with one of the user's own.
    """
    wanted = [add_own(Path(name)) if name.endswith(".toml") else name for name in names or ("all",)]
    for name in wanted:
        if name != "all":
            preset(name)
    return tuple(dict.fromkeys(each for name in wanted for each in (NAMES if name == "all" else (name,))))


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> ConfigPart:
    """`change` over `base`, table by table; another `name` is another choice, whose options start afresh."""
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("peermask.paper").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8"))
