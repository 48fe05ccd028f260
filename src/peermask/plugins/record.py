"""What is known of a plug-in: a file and its hash, or a module and the version of its package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from peermask.registry import Options

Text = Annotated[str, Field(min_length=1, max_length=4096)]
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class Plugin(Options):
    """What a run records of a plug-in: a file and its hash, or a module and its version if it has one."""

    file: Text | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    module: Annotated[str, Field(pattern=f"^{DOTTED.pattern}$", max_length=200)] | None = None
    version: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Plugin:
        if (self.file is None) == (self.module is None):
            raise ValueError("must have a file or a module")
        return self

    @property
    def name(self) -> str:
        """As `--import` takes it."""
        return self.file or self.module or ""

    def table(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


def is_file_name(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def of_name(name: str) -> Plugin:
    """Of what is known only by its name."""
    return Plugin(file=name) if is_file_name(name) else Plugin(module=name)


def changed(before: Iterable[Plugin], now: Iterable[Plugin]) -> list[str]:
    """A line for each plug-in that is not as it was."""
    return [
        f"plug-in {other.name} has changed: {state(plugin)} then, {state(other)} now"
        for plugin in before
        for other in now
        if alike(plugin, other) and not same(plugin, other)
    ]


def same(one: Plugin, other: Plugin) -> bool:
    if one.module is not None:
        return (one.module, one.version) == (other.module, other.version)
    return one.sha256 is not None and one.sha256 == other.sha256


def alike(one: Plugin, other: Plugin) -> bool:
    """The same but for its content: a module of that name, or a file of that name, in any folder."""
    if one.file is None or other.file is None:
        return one.module is not None and one.module == other.module
    return Path(one.file).name == Path(other.file).name


def state(plugin: Plugin) -> str:
    if plugin.module is not None:
        return f"version {plugin.version or 'unknown'}"
    return f"SHA-256 {plugin.sha256[:12]}" if plugin.sha256 else "SHA-256 unknown"


def of_module(name: str) -> Plugin:
    return Plugin(module=name, version=version_of(name))


def version_of(module: str) -> str | None:
    """Of the installed package that a module is in."""
    for package in importlib.metadata.packages_distributions().get(module.partition(".")[0], ()):
        return importlib.metadata.version(package)
    return None


def place_of(module: str) -> str | None:
    """Where the package of a module would be imported from; nothing is executed to find out."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:  # of a module that is no file, such as __main__
        return None
    return None if spec is None else spec.origin or str(next(iter(spec.submodule_search_locations or ()), ""))
