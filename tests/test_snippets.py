"""The names that authors import, and every snippet of the pages that teach them."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import peermask
from commands import Call
from peermask import plugin, registry
from plugin_state import forget_plugins

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("adding.md", "data.md", "scale.md")  # pages whose snippets may import public names only


def snippets(page: str, language: str = r"\w+") -> list[str]:
    """The fenced blocks of a page in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Run code, or a command after `peermask`, in a folder of its own: a process of its own takes seconds to import
    torch, so plug-ins are forgotten instead."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run_here(*words: str) -> str:
        forget_plugins()
        if words[0] == "peermask":
            code, out, err = call(*words[1:])
            assert code == 0, out + err
            return out
        capsys.readouterr()
        exec(compile(words[0], "<snippet>", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    yield run_here
    for name in ("my_package", "my_package.methods", "wandb"):
        sys.modules.pop(name, None)


def commands(block: str) -> list[list[str]]:
    """The arguments of every `peermask` command of a block, without comments."""
    lines = [line.split("#")[0].split() for line in block.splitlines()]
    assert all(words[0] == "peermask" for words in lines)
    return [words[1:] for words in lines]


def listed(heading: str) -> set[str]:
    """The names in the table under a heading of docs/api.md."""
    section = (DOCS / "api.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][1:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_reference_lists_all_public_names_and_no_others() -> None:
    assert listed("For users: `peermask`") == set(peermask.__all__)
    assert all(hasattr(peermask, name) for name in peermask.__all__)
    authors = listed("For authors: `peermask.plugin`")
    assert authors - {"Registry", "PeermaskError"} == set(plugin.__all__) - {"Registry"}
    assert all(getattr(plugin, name) is not None for name in plugin.__all__)
    both = set(peermask.__all__) & set(plugin.__all__)
    assert all(getattr(peermask, name) is getattr(plugin, name) for name in both)


@pytest.mark.parametrize("page", PAGES)
def test_snippets_import_public_names_only(page: str) -> None:
    for block in snippets(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "peermask":
                public = {"peermask": {*peermask.__all__, "plugin"}, "peermask.plugin": set(plugin.__all__)}
                assert {alias.name for alias in node.names} <= public[node.module]
            if isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("peermask.")]
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "plugin":
                assert node.attr in plugin.__all__


@pytest.mark.long
def test_snippets_about_adding_things(run: Callable[..., str], tmp_path: Path) -> None:
    algorithm, functions = snippets("adding.md", "python")
    own_experiment, imports, entry_point = snippets("adding.md", "toml")
    (shell,) = snippets("adding.md", "sh")
    assert len(snippets("adding.md")) == 6

    (tmp_path / "my_method.py").write_text(algorithm)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "methods.py").write_text(functions)
    images, labels = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8), np.arange(40) % 4
    np.savez(tmp_path / "mine.npz", x=images, y=labels, x_test=images, y_test=labels)
    small = 'agents = 4\nrounds = 2\nretention = 0.3\nalgorithm = "gossip-median"\n'

    (tmp_path / "tiny.toml").write_text(small + 'model = "mlp"\n')
    for arguments in commands(shell):
        assert "gossip-median" in run("peermask", *arguments)

    named = 'graph = "wheel"\nmodel = "tiny"\npartition = "by-parity"\ndataset = { name = "mine", file = "mine.npz" }\n'
    (tmp_path / "all.toml").write_text(small + imports + named)
    script = "import peermask; print(peermask.run_experiment(peermask.load_config('all.toml'), 'all').status)"
    assert run(script) == "finished\n"

    assert tomllib.loads(entry_point)["project"]["entry-points"].keys() == {registry.GROUP}

    quick = own_experiment.replace("config = {", "config = { rounds = 2, agents = 4, ", 1)
    (tmp_path / "mine.toml").write_text(quick)
    run("peermask", "reproduce", "mine.toml", "--import", "my_method.py", *QUICK)
    (table,) = (tmp_path / "out").rglob("mine.md")
    assert "gossip-median" in table.read_text()


QUICK = ("--scale", "quick", "--seeds", "1", "--device", "cpu", "--out", "out")
ARRAYS = """
import numpy as np, peermask
draw = np.random.default_rng(0)
x_train = draw.normal(size=(60, 5)).astype(np.float32)
y_train = x_train.sum(1)
x_test, y_test = x_train[:20], y_train[:20]
config = peermask.make_config(
    {"agents": 3, "rounds": 2, "retention": 0.5, "model": "mlp", "partition": "iid", "algorithm": "ind-mask", **TASK}
)
"""
NET = """
from torch import nn
class MyNet(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
"""


@pytest.mark.long
def test_snippets_about_data(run: Callable[..., str], tmp_path: Path) -> None:
    arrays, frame, functions, module = snippets("data.md", "python")
    table, task, folders, weights, photographs = snippets("data.md", "toml")
    assert len(snippets("data.md")) == 12  # one is a tree of folders; commands are in the next test

    prelude = f"TASK = {tomllib.loads(task)!r}\n" + ARRAYS
    said = run(functions + prelude + arrays + "print(result.status, result.agents[0].figures)\n")
    assert said.startswith("finished")
    assert "within-10" in said
    said = run(functions + prelude + arrays + NET + module + "print(result.status)\n")
    assert said == "finished\n"

    pandas = pytest.importorskip("pandas")
    farms = [f"farm {number % 12}" for number in range(96)]
    rows = pandas.DataFrame({"height": range(96), "species": ["fig", "pear"] * 48, "farm": farms})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    script = "import pandas, peermask\nrows = pandas.read_csv('rows.csv')\n" + frame + "print(data.classes)\n"
    assert run(script).strip() == "('fig', 'pear')"
    (tmp_path / "table.toml").write_text(table + 'rounds = 1\nretention = 0.5\nmodel = "mlp"\n')
    run("peermask", "run", "table.toml")

    pillow = pytest.importorskip("PIL.Image")
    for split in ("train", "test"):
        for agent, kind in np.ndindex(12, 2):
            place = tmp_path / "photos" / split / str(agent) / "ab"[kind]
            place.mkdir(parents=True)
            for number in range(4):
                pillow.new("RGB", (9, 9), (20 * agent, 99 * kind, number)).save(place / f"{number}.png")
    (tmp_path / "folders.toml").write_text(folders + 'rounds = 1\nretention = 0.5\nmodel = "mlp"\n')
    run("peermask", "run", "folders.toml")

    for line in weights.splitlines():
        assert peermask.make_config(tomllib.loads(line)).frozen.source
    assert peermask.make_config(tomllib.loads(photographs)).model.name == "efficientnet-lite0"


def test_snippets_about_data_of_a_fleet(run: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("zenoh")
    shell, look = snippets("data.md", "sh")
    (words,) = commands(look)
    run("peermask", *words)
    inputs = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x_train=inputs, y_train=np.arange(60) % 3, x_test=inputs, y_test=np.arange(60) % 3)
    (tmp_path / "config.toml").write_text(
        'agents = 4\nretention = 0.5\nmodel = "mlp"\npartition = "everything"\n'
        'dataset = { name = "npz", path = "d.npz", kind = "features" }\n'
    )
    run("peermask", "fleet", "new", "fleet.toml", "config.toml")
    summary, statistics = commands(shell)
    for agent in range(4):
        own = [str(agent) if word == "3" else word.replace("3.json", f"{agent}.json") for word in summary]
        run("peermask", *own)
    run("peermask", *statistics)
    assert "normalise" in (tmp_path / "fleet.toml").read_text()


WANDB = """
class Run:
    def log(self, figures, step): print("log", step, sorted(figures)[0])
    def finish(self): print("finish")
def init(project, name, config):
    assert config["rounds"] == 2
    return Run()
"""


def test_snippets_about_observers(run: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    means, wandb, both = snippets("report.md", "python")
    (tmp_path / "wandb.py").write_text(WANDB)  # which needs an account; the calls are those of its documentation
    values = {"agents": 3, "rounds": 2, "graph": "ring", "model": "mlp", "retention": 0.5}
    said = run(f"import peermask\nconfig = {values!r}\n{means}\n{wandb}\n{both}")
    assert "log 2" in said
    assert said.rstrip().endswith("finish")
    assert list((tmp_path / "logs").glob("*/events*"))
