"""Imports plug-ins that the user named; errors in them are one line."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from peermask.errors import ConfigError, PeermaskError
from peermask.plugins.memory import remember
from peermask.plugins.record import DOTTED, Plugin, is_file_name, of_module, of_name, place_of
from peermask.registry import GROUP

imported: dict[str, Plugin] = {}  # by name: what this process has imported because the user named it


def load_plugins(names: Iterable[str], beside: Path | None = None) -> tuple[Plugin, ...]:
    """Import files and modules that the user named; a file is found relative to the folder `beside`.

    A file that has changed since it was imported is imported again, and what it registers replaces what it did before.
    """
    return tuple(_load_file(_path(name, beside)) if is_file_name(name) else _load_module(name) for name in names)


def records(names: Iterable[str] | None) -> list[Plugin]:
    """What a run records: the plug-ins of its config, and those of installed packages that were imported."""
    named = [imported.get(name) or of_name(name) for name in names or ()]
    modules = {plugin.module for plugin in named}
    points = (point.module for point in importlib.metadata.entry_points(group=GROUP))
    return named + [of_module(name) for name in points if name in sys.modules and name not in modules]


def imported_hash() -> str:
    """Equal for two processes with the same plug-ins, wherever each has its files."""
    held = sorted(plugin.sha256 or f"{plugin.module} {plugin.version}" for plugin in imported.values())
    return hashlib.sha256("\n".join(held).encode()).hexdigest() if held else "none"


class _Given(SourceFileLoader):
    """Executes the very bytes that were hashed, and writes no bytecode beside them."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self.source = source

    def get_data(self, path: object) -> bytes:  # noqa: ARG002 (there is one)
        return self.source

    def path_stats(self, path: object) -> Any:  # noqa: ARG002
        raise OSError  # nothing is known of its age, so that no bytecode is looked for


def _path(name: str, beside: Path | None) -> Path:
    return ((beside or Path()) / Path(name).expanduser()).resolve()


def _load_file(path: Path) -> Plugin:
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"plug-in {path} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"plug-in {path} is a folder; name a .py file, or a module that can be imported") from None
    except OSError as error:
        raise ConfigError(f"plug-in {path} cannot be read: {error.strerror or error}") from None
    plugin = Plugin(file=str(path), sha256=hashlib.sha256(source).hexdigest())
    if imported.get(plugin.name) != plugin:
        stem = re.sub(r"\W", "_", path.stem)
        name = f"peermask_plugin_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        loader = _Given(name, str(path), source)
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and type hints look there
        _executed(lambda: loader.exec_module(module), f"plug-in {path}", str(path))
        imported[plugin.name] = plugin
    remember(plugin.sha256 or "", str(path))
    return plugin


def _load_module(name: str) -> Plugin:
    if not DOTTED.fullmatch(name):
        raise ConfigError(f"plug-in {name!r} is neither a .py file nor the name of a module")
    if place_of(name) is None:
        hint = f"; for the file, name {name}.py" if Path(f"{name}.py").is_file() else "; name a .py file, or install it"
        raise ConfigError(f"plug-in {name}: there is no such module{hint}")
    _executed(lambda: importlib.import_module(name), f"plug-in {name}", "")
    plugin = imported[name] = of_module(name)
    remember(name, place_of(name) or "")
    return plugin


def _executed(call: Callable[[], object], what: str, path: str) -> None:
    """Any error in a user's code becomes one line, with its line number."""
    try:
        call()
    except PeermaskError as error:
        raise ConfigError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines.append(error.lineno)
        at = f", line {lines[-1]}" if lines else ""
        raise ConfigError(f"{what}{at}: {type(error).__name__}: {error}") from error
