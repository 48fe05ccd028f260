"""The values in a config file, and those that a command line puts in their place."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peermask.errors import ConfigError


def overridden(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    for key, value in sorted(map(split_override, overrides), key=lambda pair: not pair[0].endswith(".name")):
        _put(values, key, value)
    return values


def read_toml(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows begin a file with a mark
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"config file {path} is a folder; a run in it goes on with --resume {path}") from None
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
            raise ConfigError(f"--set {key}: {'.'.join(tables[: depth + 1])} is {inner!r}, not a table")
        table = inner
    if last == "name" and tables and table.get("name") != value:
        table.clear()  # another choice has other options
    table[last] = value


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"graph": {"p": 0.5}}` as `{"graph.p": "0.5"}`."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat
