"""Plug-ins of a run or fleet: found if they were imported, and one line that says what to do if not."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path

import networkx as nx  # a module with a version, imported here
import pytest
from pydantic import ValidationError

from peermask.errors import ConfigError
from peermask.plugins import Plugin, find_plugins, of_module


def refused(plugin: Plugin, *, exact: bool = False) -> str:
    with pytest.raises(ConfigError) as error:
        find_plugins([plugin], "the run", exact=exact)
    return str(error.value)


def test_a_module_of_the_same_version_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Plugin(module="networkx", version=nx.__version__)
    assert find_plugins([plugin], "the run") == ("networkx",)
    assert not caplog.messages


def test_a_module_of_another_version_is_used_with_a_warning_but_not_in_a_fleet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, line = Plugin(module="networkx", version="0.1"), f"version 0.1 then, version {nx.__version__} now"
    assert find_plugins([old], "the run") == ("networkx",)
    assert caplog.messages == [f"the run: plug-in networkx has changed: {line}; the present version is used"]
    assert f"plug-in networkx has changed: {line}; all agents must have the same" in refused(old, exact=True)


def test_a_module_that_was_not_named_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "a_module_for_test_find"
    (tmp_path / f"{module}.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refused(Plugin(module=module)) == (
        f"the run needs the plug-in {module} (version unknown); if you trust it, give --import {module}"
    )
    assert module not in sys.modules


def test_a_file_that_was_not_named_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "a_file_for_test_find.py"
    path.write_text("raise SystemExit('imported')\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert refused(Plugin(file=str(path), sha256=digest)) == (
        f"the run needs the plug-in {path} (SHA-256 {digest[:12]}); if you trust it, give --import {path}"
    )


def test_a_file_that_a_script_has_imported_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a_script_for_test_find.py"
    path.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, path.stem, importlib.import_module(path.stem))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert find_plugins([Plugin(file=str(path), sha256=digest)], "the run") == (str(path),)


def test_a_plug_in_is_a_file_or_a_module() -> None:
    for keys in ({}, {"file": "a.py", "module": "a"}):
        with pytest.raises(ValidationError, match="must have a file or a module"):
            Plugin.model_validate(keys)
    assert of_module("a_module_that_is_in_no_package").version is None
