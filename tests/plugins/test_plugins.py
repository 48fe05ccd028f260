"""Plug-ins: named for each command, recorded and compared; nothing is imported that the user did not name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_process import process
from peermask import plugins
from peermask.cli.main import main
from peermask.config.file import make_config
from peermask.errors import ConfigError
from peermask.files import file_digest
from peermask.graph import topologies
from peermask.registry import Registry
from plugin_state import forget_plugins

METHOD = '''
"""Learns alone, by {rate} a step."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from peermask import Algorithm, registry
from peermask.algorithms import algorithms

with Path(__file__).with_suffix(".log").open("a") as log:
    log.write("imported\\n")


@dataclass(frozen=True)
class State:
    weights: Tensor


@algorithms.register("{name}")
class Alone(Algorithm[State]):
    """Gradient steps, and the mean of what is heard."""

    class Options(registry.Options):
        lr: float = {rate}

    def init(self, agents):
        return State(self.masker.frozen.repeat(len(agents.ids), 1))

    def learn(self, state, data, clock):
        gradient, loss = self.setting.network.gradient(state.weights, data.batch(clock))
        return replace(state, weights=state.weights - self.options.lr * gradient), loss

    def share(self, state):
        return {{"weights": state.weights}}

    def fuse(self, state, received, mixing, clock):
        heard = received["weights"]
        return replace(state, weights=torch.stack([heard[row].mean(0) for row in mixing.closed]))

    def local_model(self, state):
        return state.weights
'''
TINY = """
agents = 2
rounds = 4
batch_size = 8
retention = 0.3
graph = "path"
algorithm = "NAME"
[data]
fraction = 0.1
[model]
name = "mlp"
hidden = [8]
[evaluation]
every = 2
[checkpoint]
every = 2
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def method(tmp_path, request):
    """A file that registers an algorithm called as the test, and a config that names it."""
    return written(tmp_path, request.node.name.replace("_", "-")[:40])


def written(folder: Path, name: str, rate: float = 0.1) -> Path:
    path = folder / "my_method.py"
    path.write_text(METHOD.format(name=name, rate=rate))
    (folder / "tiny.toml").write_text(TINY.replace("NAME", name))
    return path


def times_imported(path: Path) -> int:
    log = path.with_suffix(".log")
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def peermask(capsys):
    """Run a command as a new process would: exit code, stdout, stderr."""

    def run(*arguments):
        forget_plugins()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def refused(result) -> str:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("peermask: ")
    assert err.count("\n") == 1
    return str(err).removeprefix("peermask: ").rstrip()


def test_a_run_records_its_plug_in_and_later_commands_name_it_again(method, tmp_path):
    began = process("run", "tiny.toml", "--import", "my_method.py", "--out", "run", "--set", "rounds=2", "-q")
    assert (began.returncode, began.stderr) == (0, "")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    (held,) = manifest["imports"]
    assert held == {"file": str(method), "sha256": file_digest(method, "sha256")}
    shown = process("show", "run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert times_imported(method) == 1  # reading needs no code
    longer = process("run", "--resume", "run", "--set", "rounds=4", "-q", "--import", "my_method.py")
    assert (longer.returncode, longer.stderr) == (0, "")
    exported = process("export", "run", "--agent", "1", "--to", "agent1.safetensors", "--import", "my_method.py")
    assert (exported.returncode, exported.stderr) == (0, "")
    assert times_imported(method) == 3


@pytest.mark.long
def test_other_ranks_import_it_too(method):
    ranked = ("--processes", "2", "-q")
    began = process("run", "tiny.toml", "--import", "my_method.py", "--out", "run", "--set", "rounds=2", *ranked)
    assert (began.returncode, began.stderr) == (0, "")
    longer = process("run", "--resume", "run", "--set", "rounds=4", *ranked, "--import", "my_method.py")
    assert (longer.returncode, longer.stderr) == (0, "")
    assert times_imported(method) == 4


def test_a_config_names_its_plug_ins_relative_to_itself(method, peermask, tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text('imports = ["my_method.py"]\n' + (tmp_path / "tiny.toml").read_text())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, _, err = peermask("run", "../tiny.toml", "--out", "run", "-q")
    assert (code, err) == (0, "")
    assert f'imports = [\n    "{method}",\n]' in (elsewhere / "run" / "config.toml").read_text()
    code, out, err = peermask("report", "run")
    assert (code, err) == (0, "")
    code, out, _ = peermask("list", "algorithms", "--import", method)
    assert "Gradient steps, and the mean of what is heard." in out


def test_a_folder_runs_no_code_that_is_not_named(method, peermask):
    assert peermask("run", "tiny.toml", "--import", method, "--out", "run", "-q")[0] == 0
    seen = times_imported(method)
    assert peermask("show", "run")[0] == peermask("report", "run")[0] == 0
    needs = f"run needs the plug-in {method} (SHA-256 {file_digest(method, 'sha256')[:12]}); if you trust it, give"
    for command in (("export", "run", "--agent", 0, "--to", "a.safetensors"), ("run", "--resume", "run")):
        assert refused(peermask(*command)) == f"{needs} --import {method}"
    assert times_imported(method) == seen
    assert peermask("export", "run", "--agent", 0, "--to", "a.safetensors", "--import", method)[0] == 0


def test_a_run_by_a_loss_and_a_metric_of_a_plug_in_is_read_without_it(peermask, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from peermask.data.measures import metrics\nfrom peermask.models.outputs import cross_entropy, losses\n\n"
        "@losses.register('halved')\ndef halved(outputs, targets):\n    return cross_entropy(outputs, targets) / 2\n\n"
        "@metrics.register('largest')\ndef largest(outputs, targets):\n    return outputs.max()\n"
    )
    task = '[task]\nloss = "halved"\nmetrics = ["largest"]\n'
    (tmp_path / "tiny.toml").write_text(TINY.replace("NAME", "mce-pl") + task)
    code, _, err = peermask("run", "tiny.toml", "--import", "mine.py", "--out", "run", "-q")
    assert (code, err) == (0, "")
    assert peermask("show", "run")[0] == peermask("report", "run")[0] == 0
    assert "mine.py" in refused(peermask("run", "--resume", "run", "--set", "rounds=6"))


def test_a_changed_or_moved_plug_in_is_used_and_reported(method, peermask, tmp_path):
    stopped = ("--set", "rounds=2", "--out", "run", "-q")
    assert peermask("run", "tiny.toml", "--import", method, *stopped)[0] == 0
    name = json.loads((tmp_path / "run" / "manifest.json").read_text())["imports"][0]["sha256"][:12]
    written(tmp_path, "test-a-changed-or-moved-plug-in-is-used-", rate=0.2)
    longer = ("run", "--resume", "run", "--set", "rounds=4")
    code, _, err = peermask(*longer, "--import", method, "-q")
    now = file_digest(method, "sha256")
    assert code == 0
    assert err == (
        f"peermask: run: plug-in {method} has changed: SHA-256 {name} then, SHA-256 {now[:12]} now; "
        "the present version is used\n"
    )
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["imports"][0]["sha256"] == now
    assert manifest["earlier_imports"][0]["sha256"].startswith(name)
    moved = method.rename(tmp_path / "moved.py")
    export = ("export", "run", "--agent", 0, "--to", "a.safetensors")
    assert peermask(*export, "--import", moved)[0] == 0


def test_a_fleet_needs_the_very_same_plug_in(method, tmp_path, peermask):
    code, _, err = peermask("fleet", "new", "fleet.toml", "tiny.toml", "--import", method)
    assert (code, err) == (0, "")
    assert str(method) in (tmp_path / "fleet.toml").read_text()
    code, out, _ = peermask("fleet", "experiment", "fleet.toml", "--import", method)
    assert code == 0
    assert str(method) in out
    node = ("node", "fleet.toml", "--agent", 0, "--insecure")
    assert "; if you trust it, give --import" in refused(peermask(*node))
    written(tmp_path, "test-a-fleet-needs-the-very-same-plug-in", rate=0.2)
    line = refused(peermask(*node, "--import", method))
    assert "has changed: SHA-256" in line
    assert line.endswith("all agents must have the same: restore it, or write a new fleet file")


@pytest.mark.long
def test_a_swarm_plays_with_a_plug_in(method, tmp_path):
    from fleet_cases import free_ports

    from peermask.run.result import RunResult

    port = free_ports(2)
    assert process("fleet", "new", "fleet.toml", "tiny.toml", "--import", method, "--port", port).returncode == 0
    played = process("swarm", "fleet.toml", "--insecure", "--out", "run", "--import", method)
    assert played.returncode == 0, played.stderr
    assert RunResult.open(tmp_path / "run").manifest["imports"][0]["file"] == str(method)
    assert times_imported(method) == 4  # by `fleet new`, the swarm, and two nodes


def test_an_installed_package_needs_no_naming(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "of_mine-1.5.dist-info").mkdir(parents=True)
    (site / "of_mine-1.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: of-mine\nVersion: 1.5\n")
    (site / "of_mine-1.5.dist-info" / "top_level.txt").write_text("of_mine\n")
    (site / "of_mine-1.5.dist-info" / "entry_points.txt").write_text("[peermask.plugins]\nany = of_mine\n")
    (site / "of_mine.py").write_text(METHOD.format(name="installed-method", rate=0.1))
    (tmp_path / "tiny.toml").write_text(TINY.replace("NAME", "installed-method"))
    monkeypatch.setenv("PYTHONPATH", f"{site}:{Path(plugins.__file__).parents[1]}")
    ran = process("run", "tiny.toml", "--out", "run", "-q")
    assert (ran.returncode, ran.stderr) == (0, "")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["imports"] == [{"module": "of_mine", "version": "1.5"}]
    (site / "of_mine-1.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: of-mine\nVersion: 1.6\n")
    changed = process("run", "--resume", "run", "--set", "rounds=6", "-q")
    assert changed.returncode == 0
    assert changed.stderr == (
        "peermask: run: plug-in of_mine has changed: version 1.5 then, version 1.6 now; the present version is used\n"
    )


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\ny = nothing\n", "line 2: NameError: name 'nothing' is not defined"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("import no_such_thing\n", "line 1: ModuleNotFoundError: No module named 'no_such_thing'"),
        (METHOD.format(name="mce-pl", rate=1), "algorithm 'mce-pl' is registered in"),
        (METHOD.format(name="../mine", rate=1), "algorithm '../mine': folders have this name, too"),
    ],
)
def test_a_plug_in_that_fails_is_one_line(source, line, peermask, tmp_path):
    (tmp_path / "my_method.py").write_text(source)
    said = refused(peermask("plan", "--import", "my_method.py"))
    assert said.startswith(f"plug-in {tmp_path / 'my_method.py'}")
    assert line in said


def test_names_that_are_no_plug_ins(peermask, tmp_path):
    assert refused(peermask("plan", "--import", "none.py")) == f"plug-in {tmp_path / 'none.py'} does not exist"
    assert "is a folder" in refused(peermask("plan", "--import", "./"))
    assert "neither a .py file nor the name of a module" in refused(peermask("plan", "--import", "no-module"))
    (tmp_path / "my_plug.py").write_text("")
    assert refused(peermask("plan", "--import", "my_plug")).endswith("no such module; for the file, name my_plug.py")
    with pytest.raises(ConfigError, match=r"^imports = 'x.py': must be a list of .py files and modules"):
        make_config({"imports": "x.py"})
    fleet = tmp_path / "fleet.toml"
    assert peermask("fleet", "new", fleet, "--set", "agents=2", "--set", "retention=0.3")[0] == 0
    fleet.write_text(fleet.read_text().replace("[experiment]", '[experiment]\nimports = ["x.py"]'))
    assert "experiment.imports: a fleet lists plug-ins with their hashes" in refused(
        peermask("node", fleet, "--agent", 0)
    )


def test_the_same_file_replaces_and_another_is_refused(tmp_path):
    def source(made, name="wheel"):
        register = f"@topologies.register('{name}')\ndef f(agents, draw):\n    '{made}'\n"
        return f"from peermask.graph import topologies\n\n{register}"

    first, other = tmp_path / "first.py", tmp_path / "other.py"
    first.write_text(source("once"))
    plugins.load_plugins([str(first)])
    first.write_text(source("twice"))
    plugins.load_plugins([str(first)])
    assert topologies["wheel"].summary == "twice"
    other.write_text(source("thrice"))
    with pytest.raises(ConfigError, match=rf"topology 'wheel' is registered in {first} and again in {other}; rename"):
        plugins.load_plugins([str(other)])


def test_a_cell_of_a_notebook_run_twice_replaces():
    kinds: Registry[Any] = Registry("kind")
    cell = "@kinds.register('mine')\ndef f(): 'again'\n"
    for _ in range(2):
        exec(compile(cell, "<cell>", "exec"), {"kinds": kinds, "__name__": "__main__"})
    assert kinds["mine"].origin == "__main__"
