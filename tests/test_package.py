"""The shape of the package: which way imports point, and what is public."""

from __future__ import annotations

import ast
import importlib
import sys
from functools import cache
from pathlib import Path

import pytest

import peermask
from peermask.errors import PeermaskError

ROOT = Path(peermask.__file__).parent
ORDER = [
    {"errors"},
    {"files", "page_server", "streams", "registry", "task"},
    {"plugins"},
    {"kernels"},
    {"data", "graph", "wire", "models"},
    {"masks"},
    {"compute"},
    {"algorithms"},
    {"config"},
    {"store"},
    {"run"},
    {"exports", "reports", "fleet"},
    {"paper"},
    {"cli"},
]


def rank(package: str) -> int:
    return next((place for place, names in enumerate(ORDER) if package in names), len(ORDER))


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}


def test_imports_point_one_way() -> None:
    """And siblings do not import each other."""
    wrong = []
    for path, tree in trees().items():
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if own in ("__init__", "__main__"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("peermask."):
                other = (node.module or "").split(".")[1]
                if other != own and rank(other) >= rank(own):
                    wrong.append(f"{path.relative_to(ROOT)} imports {node.module}")
    assert wrong == []


def test_nothing_reads_pickles_or_evaluates_text() -> None:
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"pickle", "shelve", "marshal", "dill"} & set(names), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("zenoh", "fleet.zenoh_transport", "node"),
        ("cryptography", "fleet.authority", "node"),
        ("cryptography", "fleet.certificates", "node"),
        ("cryptography", "fleet.credentials", "node"),
        ("prometheus_client", "fleet.metrics", "node"),
        ("onnx", "exports.onnx", "export"),
        ("onnxscript", "exports.onnx", "export"),
    ],
)
def test_without_an_extra_the_error_names_it(
    package: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, f"peermask.{module}", raising=False)
    with pytest.raises(PeermaskError, match=rf"pip install 'peermask\[{extra}\]'"):
        importlib.import_module(f"peermask.{module}")
