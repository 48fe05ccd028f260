"""What a new user gets wrong: one line each, exit code 2, and nothing written."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

import peermask
from command_process import Done, process
from commands import Call
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import load_config
from peermask.data.partition import partitions
from peermask.errors import PeermaskError
from peermask.graph.topology import topologies
from peermask.reports.tables import agents_table
from waiting import PATIENCE

Small = Callable[..., ExperimentConfig]


def refused(done: Done) -> str:
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not Path("runs").exists()
    return done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder")
def test_too_many_agents_for_the_memory_there_is() -> None:
    err = refused(process("run", "--set", "agents=20000", memory=7 * 10**9))
    assert "agents = 20000: about 99,995,000 links take about 40.0 GB, and" in err
    assert "use fewer of either" in err


@pytest.mark.usefixtures("folder")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["list", "plan"])
def test_output_to_a_full_disk(command: str) -> None:
    assert "cannot write the output: No space left on device" in refused(process(command, stdout="/dev/full"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "[" * 5000, "is nested too deeply: use only tables and lists"),
        ("rounds = " + "9" * 5000, "is not valid TOML: Exceeds the limit"),
    ],
)
def test_configs_that_no_experiment_has(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(PeermaskError, match=message) as refusal:
        load_config(path)
    assert len(str(refusal.value).replace(str(path), "")) < 200  # the value, 5,000 characters, is not repeated


@pytest.mark.parametrize(
    ("override", "message"),
    [("compare=" + "[" * 5000, "--set compare: the value is nested too deeply"), ("rounds=" + "9" * 5000, "rounds = ")],
)
def test_overrides_that_no_experiment_has(override: str, message: str) -> None:
    with pytest.raises(PeermaskError, match=message):
        load_config(None, [override])


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbfrounds = 7\n")
    assert load_config(path).rounds == 7
    assert load_config(None, ["data.flip=true"]).data.flip  # where true is meant


def test_a_config_may_be_values_or_a_path(small: Small, tmp_path: Path) -> None:
    values = small().table()
    by_values = peermask.run_experiment(values, tmp_path / "a")
    by_path = peermask.run_experiment(tmp_path / "a" / "config.toml", tmp_path / "b")
    assert by_values.hash == by_path.hash
    with pytest.raises(
        PeermaskError, match="config has type int; give an ExperimentConfig, plain values, or a file's path"
    ):
        peermask.run_experiment(3, tmp_path / "c")  # type: ignore[arg-type]


def test_what_is_no_path(small: Small, tmp_path: Path) -> None:
    for call in (peermask.load_config, peermask.load_ticket, peermask.resume_experiment, peermask.RunResult.open):
        with pytest.raises(PeermaskError, match="path has type int; give a path"):
            call(3)  # type: ignore[arg-type]
    with pytest.raises(PeermaskError, match="out has type int; give a path"):
        peermask.run_experiment(small(), 3)  # type: ignore[arg-type]
    with pytest.raises(PeermaskError, match="to has type int; give a path"):
        peermask.export(tmp_path, 0, 3)  # type: ignore[arg-type]
    with pytest.raises(PeermaskError, match="runs has type int; give a path"):
        peermask.report(3)  # type: ignore[arg-type]
    with pytest.raises(PeermaskError, match="runs is empty; give a result or a run folder"):
        peermask.report([])


def test_what_is_no_data_set_and_no_module(small: Small, tmp_path: Path) -> None:
    with pytest.raises(PeermaskError, match=r"dataset has type dict; make one of it with peermask\.from_arrays"):
        peermask.run_experiment(small(), tmp_path / "run", dataset={})  # type: ignore[arg-type]
    with pytest.raises(PeermaskError, match=r"module is the class Linear; give an instance: Linear\(\)"):
        peermask.run_experiment(small(), tmp_path / "run", module=torch.nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(PeermaskError, match="this is the only process; use run_experiment"):
        peermask.take_part(small(), peermask.Execution())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda n: nx.DiGraph(nx.cycle_graph(n)), r"gave a DiGraph; links go both ways here: give networkx\.Graph"),
        (lambda n: nx.MultiGraph(nx.cycle_graph(n)), "gave a MultiGraph"),
        (lambda n: nx.cycle_graph(n + 1), "nodes are not the agents 0 to 3"),
        (lambda n: nx.Graph([*nx.cycle_graph(n).edges, (0, 0)]), "a link from an agent to itself"),
        (lambda n: [[0] * n] * n, "gave a list; a topology gives a networkx.Graph"),
    ],
)
def test_topologies_of_ones_own_that_are_none(
    small: Small, tmp_path: Path, graph: Callable[[int], object], message: str
) -> None:
    topologies.register("mine")(lambda agents, draw: graph(agents))  # type: ignore[arg-type, return-value]  # noqa: ARG005
    with pytest.raises(PeermaskError, match=message):
        peermask.run_experiment(small(graph="mine"), tmp_path / "run")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda n: [np.arange(5)] * (n - 1) + [np.arange(0)], "partition mine gave agent 3 no samples; every agent"),
        (lambda n: [np.arange(5)] * (n - 1), "gave 3 parts, not a list of one part for each of 4 agents"),
        (lambda n: [np.array([10**6])] * n, "samples that are not among the"),
        (lambda n: [[1, 2]] * n, "gave agent 0 no array of whole numbers"),
        (lambda _: None, "gave a NoneType, not a list"),
    ],
)
def test_partitions_of_ones_own_that_are_none(
    small: Small, tmp_path: Path, parts: Callable[[int], object], message: str
) -> None:
    partitions.register("mine")(lambda labels, agents, draw: parts(agents))  # type: ignore[arg-type, return-value]  # noqa: ARG005
    with pytest.raises(PeermaskError, match=message):
        peermask.run_experiment(small(partition="mine"), tmp_path / "run")


def test_a_narrow_terminal_cuts_no_heading_and_worst_is_of_each_column(small: Small, tmp_path: Path) -> None:
    from rich.console import Console

    config = small(compare=["ind-mask", "dsgd"], partition={"name": "labels", "labels_per_agent": 7})
    result = peermask.run_experiment(config, tmp_path / "run")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(agents_table(result))
    text = console.export_text()
    for heading in ("agent", "labels", "retention", "density", "accuracy", "sent", "ind-mask", "dsgd"):
        assert f" {heading} " in text
    (worst,) = (line for line in text.splitlines() if "worst" in line)
    cells = [cell.strip() for cell in worst.strip("│").split("│")]
    lowest = [f"{100 * min(a.test_accuracy for a in arm.agents):.1f} %" for arm in (result, *result.compared)]
    assert cells == ["worst", "", "", "", lowest[0], "", *lowest[1:]]


def test_arguments_of_the_wrong_type_in_python(tmp_path: Path, small: Small) -> None:
    with pytest.raises(PeermaskError, match=r"^values is 3: must be a mapping of keys to values"):
        peermask.make_config(3)  # type: ignore[arg-type]
    result = peermask.run_experiment(small(), tmp_path / "run")
    with pytest.raises(PeermaskError, match=r"has no figure 'test_acuracy'; did you mean 'test_accuracy'\?"):
        result.mean("test_acuracy")
    assert result.mean("accuracy") == result.mean_accuracy
    with pytest.raises(PeermaskError, match=r"^agent is '0': must be the number of an agent, 0 to "):
        peermask.export(result, agent="0", to=tmp_path / "a.ticket")  # type: ignore[arg-type]
    assert not (tmp_path / "a.ticket").exists()


@pytest.mark.parametrize(
    "words", [("show",), ("report",), ("watch",), ("run", "--resume"), ("export", "--agent", "0", "--to", "a.ticket")]
)
def test_a_folder_that_does_not_exist_is_told_from_one_without_a_run(
    call: Call, tmp_path: Path, words: tuple[str, ...]
) -> None:
    missing = "; check the path (`peermask runs list` shows your runs)\n"
    assert call(*words, str(tmp_path / "nope")) == (2, "", f"peermask: there is no folder {tmp_path / 'nope'}{missing}")
    assert f"{tmp_path} is not a run folder: it has no config.toml" in call(*words, str(tmp_path))[2]


@pytest.mark.parametrize("redirected", [">&-", ">&- 2>&-"])
def test_closed_outputs(tmp_path: Path, redirected: str) -> None:
    command = f"'{sys.executable}' -m peermask list {redirected}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    told = "peermask: standard output is closed; send it to a file, or to /dev/null\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "" if "2>" in redirected else told)


@pytest.mark.usefixtures("folder")
def test_a_diverged_arm_of_a_comparison() -> None:
    """The error names its algorithm and key; the arms after it run, and all that finished are shown."""
    arms = "['dsgd', {name='dsgd', lr=1e30}, 'ind-mask']"
    small = ["agents=4", "rounds=4", "retention=0.3", "evaluation.every=2", "model='mlp'", f"compare={arms}"]
    done = process("run", "--out", "run", *(part for one in small for part in ("--set", one)))
    assert done.returncode == 2
    assert done.stderr.startswith("peermask: dsgd-2: the loss of agent ")
    assert done.stderr.endswith("try a smaller compare[1].lr\n")
    assert "accord against ind-mask: " in done.stdout
    shown = process("show", "run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "dsgd-2 diverged: the loss of agent" in shown.stdout
    assert "try a smaller compare[1].lr" in shown.stdout
    assert "accord against ind-mask: " in shown.stdout
    assert not any(word in shown.stdout for word in ("nan points", "against dsgd-2", "resume with"))
    assert process("report", "run").returncode == 0
    assert "run/dsgd-2 diverged before its first evaluation" in Path("run/report.html").read_text()
