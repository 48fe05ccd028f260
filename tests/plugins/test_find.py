"""Plug-ins that a run or fleet names: found if the user named them, and one line that says what to do if not."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx  # a module with a version, imported here
import pytest
from pydantic import ValidationError

from peermask.errors import ConfigError
from peermask.plugins import Plugin, find_plugins, imported, place_of, remember, version_of


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported, and that nobody has named."""
    name = "a_module_for_test_find"
    (tmp_path / f"{name}.py").write_text(
        "from peermask.registry import Registry\n\nRegistry('thing').register('it')(print)\nREAD = True\n"
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
    imported.pop(name, None)


def refused(plugin: Plugin, *, exact: bool = False) -> str:
    with pytest.raises(ConfigError) as error:
        find_plugins([plugin], "the run", lambda _line: None, exact=exact)
    return str(error.value)


def test_a_module_of_the_same_version_is_the_same() -> None:
    said: list[str] = []
    plugin = Plugin(module="networkx", version=nx.__version__)
    assert find_plugins([plugin], "the run", said.append) == ("networkx",)
    assert said == []


def test_a_module_of_another_version_is_used_with_a_warning_but_not_in_a_fleet() -> None:
    said: list[str] = []
    old, line = Plugin(module="networkx", version="0.1"), f"version 0.1 then, version {nx.__version__} now"
    assert find_plugins([old], "the run", said.append) == ("networkx",)
    assert said == [f"the run: plug-in networkx has changed: {line}; the present version is used"]
    assert f"plug-in networkx has changed: {line}; all agents must have the same" in refused(old, exact=True)


def test_a_module_that_was_not_named_is_not_imported(module: str) -> None:
    assert refused(Plugin(module=module)) == (
        f"the run needs the plug-in {module} (version unknown), which you have not named yet; if you trust it, "
        f"give --import {module} to use it"
    )
    assert "but version unknown is installed; give --import" in refused(Plugin(module=module, version="2.0"))
    assert "(version 2.0), which is not installed here" in refused(Plugin(module=f"no_{module}", version="2.0"))
    assert module not in sys.modules


def test_a_module_that_was_named_earlier_is_imported_from_the_same_place_only(module: str) -> None:
    remember(module, "/somewhere/else.py")
    assert "which you have not named yet" in refused(Plugin(module=module))
    place = place_of(module)
    assert place is not None
    remember(module, place)
    assert find_plugins([Plugin(module=module)], "the run", lambda _line: None) == (module,)
    assert sys.modules[module].READ


def test_a_file_is_named_by_what_became_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "a_file_for_test_find.py"
    path.write_text("raise SystemExit('imported')\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"which you have not named yet; if you trust it, give --import {path}" in refused(
        Plugin(file=str(path), sha256=digest)
    )
    assert f"which has changed since: restore it, or give --import {path}" in refused(
        Plugin(file=str(path), sha256="0" * 64)
    )
    path.unlink()
    assert "which is not there; give --import and where it is now" in refused(Plugin(file=str(path), sha256=digest))


def test_a_plug_in_is_a_file_or_a_module() -> None:
    for keys in ({}, {"file": "a.py", "module": "a"}):
        with pytest.raises(ValidationError, match="must have a file or a module"):
            Plugin.model_validate(keys)
    assert version_of("a_module_that_is_in_no_package") is None
