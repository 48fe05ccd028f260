"""Plug-ins: user code that registers algorithms, models, datasets and the like.

Code is imported only if the user named it: with `--import`, with the key `imports` of a config that is run, or by
installing a package with an entry point (see `registry.py`). A run folder or fleet file may come from somebody else.
What it says it was made with is compared with what the user named, now or earlier, and never imported for being there:
a file by its SHA-256, a module by its name, place and version.

What was named earlier is kept for each user in $XDG_STATE_HOME/peermask/plugins (~/.local/state/peermask/plugins): a
file called by the SHA-256 of the plug-in, or by the name of its module, that says where it is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
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
from peermask.files import file_digest, write_atomically
from peermask.registry import GROUP, Options, Registry

# What is known of a plug-in: a file and its hash, or a module and the version of its package.

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


# What a user has named before: a file each, called by a plug-in's SHA-256 or module, that says where it is.


def _memory() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "peermask" / "plugins"


def remember(key: str, place: str) -> None:
    with suppress(OSError, PeermaskError):  # a home that cannot be written to: then it is named each time
        if recall(key) != place:
            _memory().mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(_memory() / key, place.encode())


def recall(key: str) -> str | None:
    with suppress(OSError, ValueError):
        return (_memory() / key).read_text(encoding="utf-8")
    return None


# Imports plug-ins that the user named; errors in them are one line.

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
    before = len(Registry.origins)
    _executed(lambda: importlib.import_module(name), f"plug-in {name}", "")
    if name not in imported and len(Registry.origins) == before and not _registers(name):
        raise ConfigError(f"plug-in {name} registers nothing: no algorithm, dataset or the like; name another module")
    plugin = imported[name] = of_module(name)
    remember(name, place_of(name) or "")
    return plugin


def _registers(name: str) -> bool:
    """Whether any module of its package has registered something, now or earlier."""
    package = name.partition(".")[0]
    own = [module for key, module in sys.modules.items() if key.partition(".")[0] == package]
    return any(str(getattr(module, "__file__", None)) in Registry.origins for module in own)


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


# Finds the plug-ins that a run or fleet was made with, among those that the user named now or earlier.


def find_plugins(
    wanted: Iterable[Plugin], where: str, warn: Callable[[str], None], *, exact: bool = False
) -> tuple[str, ...]:
    """Import what a run or fleet in `where` was made with, as far as the user named it now or earlier.

    A plug-in that is given now and has changed since is taken, with a warning, unless it must be `exact`.

    Returns:
        Their names on this machine, for the config.
    """
    return tuple(_find(plugin, where, warn, exact=exact) for plugin in wanted)


def _find(plugin: Plugin, where: str, warn: Callable[[str], None], *, exact: bool) -> str:
    given = [*imported.values(), *_imported_in_python(plugin)]
    for other in given:
        if same(plugin, other):
            return other.name
    for other in given:
        if alike(plugin, other) and plugin.sha256 is None and plugin.file is not None:
            return other.name  # all that is known of it is its name
        if alike(plugin, other):
            (line,) = changed([plugin], [other])
            if exact:
                raise ConfigError(
                    f"{where}: {line}; all agents must have the same: restore it, or write a new fleet file"
                )
            warn(f"{where}: {line}; the present version is used")
            return other.name
    earlier = _named_earlier(plugin)
    if earlier is None:
        raise ConfigError(f"{where} needs the plug-in {plugin.name} ({state(plugin)}), {_why_not(plugin)}")
    return load_plugins([earlier])[0].name


def _why_not(plugin: Plugin) -> str:
    """The rest of a sentence: why it was not imported, and what to do. Files are read for this, never executed."""
    if plugin.module is not None:
        if place_of(plugin.module) is None:
            return "which is not installed here; install it"
        now = version_of(plugin.module)
        how = f"give --import {plugin.module} to use it"
        if now != plugin.version:
            return f"but version {now or 'unknown'} is installed; {how} as it is now"
        return f"which you have not named yet; if you trust it, {how}"
    path = Path(plugin.name)
    try:
        digest = file_digest(path, "sha256") if path.is_file() else None
    except OSError:
        digest = None
    if digest is None:
        return "which is not there; give --import and where it is now"
    if plugin.sha256 not in (None, digest):
        return f"which has changed since: restore it, or give --import {path} to use it as it is now"
    return f"which you have not named yet; if you trust it, give --import {path}"


def _named_earlier(plugin: Plugin) -> str | None:
    """Where a plug-in is that the user named earlier, or installed, if it is still the same."""
    if plugin.module is not None:
        installed = {point.module for point in importlib.metadata.entry_points(group=GROUP)}
        place = place_of(plugin.module)
        known = place is not None and (plugin.module in installed or recall(plugin.module) == place)
        return plugin.module if known and version_of(plugin.module) == plugin.version else None
    path = recall(plugin.sha256 or "-")
    with suppress(OSError):
        if path is not None and file_digest(Path(path), "sha256") == plugin.sha256:
            return path
    return None


def _imported_in_python(plugin: Plugin) -> list[Plugin]:
    """A plug-in's file or module that a script or notebook has imported."""
    if plugin.module is not None:
        return [of_module(plugin.module)] if plugin.module in sys.modules else []
    if any(getattr(module, "__file__", None) == plugin.file for module in list(sys.modules.values())):
        with suppress(OSError):
            return [Plugin(file=plugin.file, sha256=file_digest(Path(plugin.name), "sha256"))]
    return []


__all__ = ["Plugin", "changed", "find_plugins", "imported_hash", "load_plugins", "of_name", "records"]
