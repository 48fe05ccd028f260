"""Finds the plug-ins that a run or fleet was made with, among those that the user named now or earlier."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from peermask.errors import ConfigError
from peermask.files import file_digest
from peermask.plugins.load import imported, load_plugins
from peermask.plugins.memory import recall
from peermask.plugins.record import Plugin, alike, changed, of_module, place_of, same, state, version_of
from peermask.registry import GROUP


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
