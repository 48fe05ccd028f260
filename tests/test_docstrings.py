"""Public functions say what they take and return, with an example that runs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import peermask

FUNCTIONS = [name for name in peermask.__all__ if inspect.isfunction(getattr(peermask, name))]
CLASSES = [name for name in peermask.__all__ if inspect.isclass(getattr(peermask, name))]
NAMES = ["__init__", *CLASSES, *FUNCTIONS]


def examples(name: str) -> list[doctest.DocTest]:
    """Of a public name, and of the methods it defines itself."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    if name == "__init__":
        return finder.find(peermask, "peermask", module=False, globs={})[:1]
    return [test for test in finder.find(getattr(peermask, name), name, module=False, globs={}) if test.examples]


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_a_public_name_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples(name)
    assert found, f"{name} has no example"
    report: list[str] = []
    for number, test in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_describe_all_arguments_and_what_they_return(name: str) -> None:
    function = getattr(peermask, name)
    text = inspect.getdoc(function) or ""
    assert "\nReturns:\n" in text
    for argument in inspect.signature(function).parameters:
        assert f"\n    {argument}: " in text, f"{name} does not describe {argument}"
