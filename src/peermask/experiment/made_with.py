"""The plug-ins a run was made with: recorded in its manifest, and found again when code is needed.

Tables, `show` and `report` need none: they read what was written. Going on, exporting and personal models do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peermask.errors import RunError
from peermask.experiment.config_file import read_config
from peermask.files import read_json
from peermask.plugins import Plugin, find_plugins, of_name


def made_with(about: Mapping[str, Any], path: Path) -> list[Plugin]:
    """The plug-ins that a manifest records."""
    held = about.get("imports", [])
    try:
        return [Plugin.model_validate(one) for one in held]
    except (ValidationError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RunError(f"{path} is damaged (imports: {reason}); restore the file, or start a new run") from None


def find_made_with(root: Path, warn: Callable[[str], None]) -> tuple[str, ...]:
    """Import the plug-ins of the run or comparison in a folder, if the user named them; their names on this machine."""
    for path in (root / "manifest.json", *sorted(root.glob("*/manifest.json"))):
        if path.is_file():
            return find_plugins(made_with(read_json(path), path), str(root), warn)
    compare = root / "compare.toml"  # of a comparison that was cut off before its first run: names without hashes
    named = (read_config(compare, unchecked=True).imports if compare.is_file() else None) or ()
    return find_plugins(map(of_name, named), str(root), warn)
