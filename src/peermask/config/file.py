"""Configs from plain values, files and run folders, and the values that a command line replaces."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peermask.config.choice import UNCHECKED, first_problem
from peermask.config.experiment import ExperimentConfig
from peermask.errors import ConfigError
from peermask.files import as_path
from peermask.plugins import load_plugins


def apply_overrides(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    for key, value in sorted(map(split_override, overrides), key=lambda pair: not pair[0].endswith(".name")):
        _put(values, key, value)
    return values


def read_toml(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows begin a file with a mark
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(
            f"config file {path} is a folder; give a TOML file, such as {path / 'config.toml'} of a run, or resume the "
            f"run with `peermask run --resume {path}`"
        ) from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config file {path} is not text; give a TOML file") from None
    except RecursionError:
        raise ConfigError(f"config file {path} is nested too deeply: use only tables and lists") from None
    except ValueError as error:  # or of a number with thousands of digits, which Python does not read
        raise ConfigError(f"config file {path} is not valid TOML: {str(error).partition(';')[0]}") from None
    return values


def split_override(override: str) -> tuple[str, Any]:
    """`key=value` with the value as TOML reads it."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: must be key=value, such as algorithm.lr=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigError(f"--set {key.strip()}: the value is nested too deeply") from None
    except ValueError:
        return key.strip(), text.strip()  # a bare word is a string


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    table = values
    for depth, name in enumerate(tables):
        inner = table.setdefault(name, {})
        if isinstance(inner, str):
            inner = table[name] = {"name": inner}
        if not isinstance(inner, dict):
            what = "a list; give all of it" if isinstance(inner, list) else f"{inner!r}, not a table"
            raise ConfigError(f"--set {key}: {'.'.join(tables[: depth + 1])} is {what}")
        table = inner
    if last == "name" and tables and table.get("name") != value:
        table.clear()  # another choice has other options
    table[last] = value


DEFAULT = Path(__file__).parent / "default.toml"


def as_config(config: ExperimentConfig | Mapping[str, Any] | Path | str) -> ExperimentConfig:
    """Convert plain values or the path of a file to a config; return a config unchanged."""
    match config:
        case ExperimentConfig():
            return config
        case Mapping():
            return make_config(config)
        case str() | Path():
            return load_config(config)
    raise ConfigError(
        f"config has type {type(config).__name__}; give an ExperimentConfig, plain values, or a file's path"
    )


def make_config(values: Mapping[str, Any]) -> ExperimentConfig:
    """Make a config from plain values. What `imports` names is imported first.

    Args:
        values: Keys and values as in a config file; what is left out has its default.

    Returns:
        The checked config.

    Raises:
        ConfigError: A key is unknown or a value is not allowed. The message names the key.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "algorithm": {"name": "mce-pl", "lr": 0.5}})
        >>> config.algorithm.name
        'mce-pl'
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"values is {values!r}: must be a mapping of keys to values, such as {{'agents': 4}}")
    return _checked(_with_plugins(values, Path()) if "imports" in values else values)


def load_config(
    path: Path | str | None = None, overrides: Iterable[str] = (), imports: Iterable[str] = ()
) -> ExperimentConfig:
    """Read a config file. What its key `imports` names is imported first: it is a program, as a Makefile is one.

    Args:
        path: A TOML file; the default experiment, ten agents on digits, if left out.
        overrides: `key=value` texts that replace values of the file, as `--set` does, such as `"algorithm.lr=0.1"`.
        imports: Further files and modules of your own to import, as `--import` does.

    Returns:
        The checked config.

    Raises:
        ConfigError: The file or a plug-in cannot be read, a key is unknown or a value is not allowed.

    Examples:
        >>> import peermask
        >>> config = peermask.load_config(overrides=["agents=4", "graph.name=ring"])
        >>> config.agents, config.graph.name
        (4, 'ring')
    """
    file = DEFAULT if path is None else as_path(path, "path")
    values = _with_plugins(read_toml(file), file.parent, imports)
    return make_config(apply_overrides(values, overrides))


def read_config(
    source: Path | Mapping[str, Any], overrides: Iterable[str] = (), *, unchecked: bool = False
) -> ExperimentConfig:
    """Read the config of a run folder, or its values. It may be somebody else's: nothing it names is imported.

    With `unchecked`, names that only a plug-in knows are let through.
    """
    values = read_toml(source) if isinstance(source, Path) else deepcopy(dict(source))
    return _checked(apply_overrides(values, overrides), UNCHECKED if unchecked else None)


def _checked(values: Mapping[str, Any], context: dict[str, bool] | None = None) -> ExperimentConfig:
    try:
        return ExperimentConfig.model_validate(values, context=context)
    except ValidationError as error:
        raise first_problem(error, ExperimentConfig) from None


def _with_plugins(values: Mapping[str, Any], beside: Path, further: Iterable[str] = ()) -> dict[str, Any]:
    """Import plug-ins and name them so that any folder can find them."""
    named = values.get("imports", [])
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) and name for name in named):
        raise ConfigError(f"imports = {named!r}: must be a list of .py files and modules, such as ['my_method.py']")
    names = [plugin.name for plugin in (*load_plugins(named, beside), *load_plugins(further))]
    return {**values, "imports": list(dict.fromkeys(names))} if names else dict(values)
