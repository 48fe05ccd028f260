"""Plug-ins: user code that registers algorithms, models, datasets and the like.

Code is imported only if the user named it: with `--import`, with the key `imports` of a config that is run, or by
installing a package with an entry point (see `registry.py`). A run folder or fleet file may come from somebody else.
The plug-ins that it lists are compared with those that were imported, and never imported for being listed: a file by
its SHA-256, a module by its name and version.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from peermask.errors import ConfigError, PeermaskError
from peermask.files import file_digest
from peermask.registry import GROUP, Options, Registry

logger = logging.getLogger(__name__)

Text = Annotated[str, Field(min_length=1, max_length=4096)]
REGISTERS_NOTHING = "registers nothing: no algorithm, dataset or the like"
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class Plugin(Options):
    """A plug-in as a run records it: a file and its hash, or a module and its version if it has one."""

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
        """The argument of `--import`."""
        return self.file or self.module or ""

    def table(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


def is_file_name(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def of_name(name: str) -> Plugin:
    """Return the plug-in of a name, without its hash or version."""
    return Plugin(file=name) if is_file_name(name) else Plugin(module=name)


def changed(before: Iterable[Plugin], now: Iterable[Plugin]) -> list[str]:
    """List a line for each plug-in that has changed."""
    return [
        f"plug-in {other.name} has changed: {state(plugin)} then, {state(other)} now"
        for plugin in before
        for other in now
        if same_name(plugin, other) and not same(plugin, other)
    ]


def same(one: Plugin, other: Plugin) -> bool:
    if one.module is not None:
        return (one.module, one.version) == (other.module, other.version)
    return one.sha256 is not None and one.sha256 == other.sha256


def same_name(one: Plugin, other: Plugin) -> bool:
    """Whether two plug-ins differ at most in content: a module of one name, or a file of one name, in any folder."""
    if one.file is None or other.file is None:
        return one.module is not None and one.module == other.module
    return Path(one.file).name == Path(other.file).name


def state(plugin: Plugin) -> str:
    if plugin.module is not None:
        return f"version {plugin.version or 'unknown'}"
    return f"SHA-256 {plugin.sha256[:12]}" if plugin.sha256 else "SHA-256 unknown"


def of_module(name: str) -> Plugin:
    """Return the plug-in of a module, with the version of the installed package that it is in."""
    packages = importlib.metadata.packages_distributions().get(name.partition(".")[0], ())
    return Plugin(module=name, version=next(map(importlib.metadata.version, packages), None))


imported: dict[str, Plugin] = {}  # by name: plug-ins that this process has imported because the user named them


def load_plugins(names: Iterable[str], beside: Path | None = None) -> tuple[Plugin, ...]:
    """Import files and modules that the user named; a file is found relative to the folder `beside`.

    A file that has changed since it was imported is imported again, and what it registers replaces what it did before.
    """
    folder = beside or Path()
    return tuple(
        _load_file((folder / Path(name).expanduser()).resolve()) if is_file_name(name) else _load_module(name)
        for name in names
    )


def records(names: Iterable[str] | None) -> list[Plugin]:
    """List the plug-ins of a config, and those of installed packages that were imported."""
    named = [imported.get(name) or of_name(name) for name in names or ()]
    modules = {plugin.module for plugin in named}
    return named + [of_module(name) for name in _installed() if name in sys.modules and name not in modules]


def _installed() -> list[str]:
    """List the modules that installed packages declare as plug-ins."""
    return [point.module for point in importlib.metadata.entry_points(group=GROUP)]


def imported_hash() -> str:
    """Return a hash that is equal in two processes with the same plug-ins, wherever each has its files."""
    contents = sorted(plugin.sha256 or f"{plugin.module} {plugin.version}" for plugin in imported.values())
    return hashlib.sha256("\n".join(contents).encode()).hexdigest() if contents else "none"


class _SourceLoader(SourceFileLoader):
    """A loader of the very bytes that were hashed, which reads and writes no bytecode."""

    source = b""

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 (there is one)
        return self.source_to_code(self.source, self.path)


def _load_file(path: Path) -> Plugin:
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"plug-in {path} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"plug-in {path} is a folder; name a .py file, or a module that can be imported") from None
    except OSError as error:
        raise ConfigError(f"plug-in {path} cannot be read: {error.strerror or error}") from None
    if path.suffix != ".py":
        raise ConfigError(f"plug-in {path} is not a .py file; name one, or a module that can be imported")
    plugin = Plugin(file=str(path), sha256=hashlib.sha256(source).hexdigest())
    if imported.get(plugin.name) != plugin:
        before = len(Registry.origins)
        stem = re.sub(r"\W", "_", path.stem)
        name = f"peermask_plugin_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        loader = _SourceLoader(name, str(path))
        loader.source = source
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and type hints look there
        _execute(lambda: loader.exec_module(module), f"plug-in {path}", str(path))
        if len(Registry.origins) == before and str(path) not in Registry.origins:
            raise ConfigError(f"plug-in {path} {REGISTERS_NOTHING}; name another file")
        imported[plugin.name] = plugin
    return plugin


def _load_module(name: str) -> Plugin:
    if not DOTTED.fullmatch(name):
        raise ConfigError(f"plug-in {name!r} is neither a .py file nor the name of a module")
    if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is None:
        hint = f"; for the file, name {name}.py" if Path(f"{name}.py").is_file() else "; name a .py file, or install it"
        raise ConfigError(f"plug-in {name}: there is no such module{hint}")
    before = len(Registry.origins)
    _execute(lambda: importlib.import_module(name), f"plug-in {name}", "")
    package = name.partition(".")[0]
    files = [getattr(module, "__file__", None) for key, module in sys.modules.items() if key.split(".")[0] == package]
    registers = len(Registry.origins) > before or not Registry.origins.isdisjoint(map(str, files))  # now or earlier
    if name not in imported and not registers:
        raise ConfigError(f"plug-in {name} {REGISTERS_NOTHING}; name another module")
    imported[name] = of_module(name)
    return imported[name]


def _execute(call: Callable[[], object], what: str, path: str) -> None:
    """Execute a user's code; any error becomes one line, with its line number."""
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


def find_plugins(wanted: Iterable[Plugin], where: str, *, exact: bool = False, quiet: bool = False) -> tuple[str, ...]:
    """Find the plug-ins of the run or fleet in `where` among those that were imported.

    One that has changed since is used, with a warning unless `quiet`; with `exact` it is an error.

    Returns:
        Their names on this machine, for the config.
    """
    return tuple(_find(plugin, where, exact=exact, quiet=quiet) for plugin in wanted)


def _find(plugin: Plugin, where: str, *, exact: bool, quiet: bool) -> str:
    candidates = [*imported.values(), *_imported_in_python(plugin)]
    for other in candidates:
        # A file without a hash is known by its name alone.
        if same(plugin, other) or (plugin.file and plugin.sha256 is None and same_name(plugin, other)):
            return other.name
    differing = [(change, other) for other in candidates for change in changed([plugin], [other])]
    for change, other in differing[:1]:
        if exact:
            raise ConfigError(
                f"{where}: {change}; all agents must have the same: restore it, or write a new fleet file"
            )
        if not quiet:
            logger.warning(f"{where}: {change}; the present version is used")
        return other.name
    raise ConfigError(
        f"{where} needs the plug-in {plugin.name} ({state(plugin)}); if you trust it, give --import {plugin.name}"
    )


def _imported_in_python(plugin: Plugin) -> list[Plugin]:
    """Return the plug-in as a script or notebook has imported it, or as an installed package has it."""
    if plugin.module is not None:
        if plugin.module in _installed():
            _load_module(plugin.module)
        return [of_module(plugin.module)] if plugin.module in sys.modules else []
    if any(getattr(module, "__file__", None) == plugin.file for module in list(sys.modules.values())):
        with suppress(OSError):
            return [Plugin(file=plugin.file, sha256=file_digest(Path(plugin.name), "sha256"))]
    return []
