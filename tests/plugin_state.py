"""Plug-ins of one test, which no other test may see."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import peermask
from peermask.graph.schedule import schedules
from peermask.models.frozen import inits
from peermask.plugin import Registry, algorithms, datasets, losses, metrics, models, partitions, topologies
from peermask.plugins import imported

PACKAGE = str(Path(peermask.__file__).parent)
REGISTRIES: tuple[Registry[Any], ...] = (
    algorithms, datasets, inits, losses, metrics, models, partitions, schedules, topologies,
)  # fmt: skip


def forget_plugins() -> None:
    """Leave what a new process has: nothing imported, nothing registered but by the package."""
    imported.clear()
    for registry in REGISTRIES:
        registry._entries = {e.name: e for e in registry if e.origin.startswith(PACKAGE)}
    for name in [name for name in sys.modules if name.startswith("peermask_plugin_")]:
        del sys.modules[name]
