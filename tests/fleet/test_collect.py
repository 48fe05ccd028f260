"""Folders of agents put together: in any order, without those that are lost, and whole or not at all."""

from __future__ import annotations

import os
import shutil
import tracemalloc

import numpy as np
import pytest
import safetensors
import safetensors.torch
from fleet_cases import MemoryFleet, refused, tiny, tiny_fleet, written

from peermask.errors import NodeError, PeermaskError, RunError
from peermask.files import read_json
from peermask.fleet import collect
from peermask.fleet.collect import collect_run
from peermask.fleet.journal import TABLES
from peermask.run.result import RunResult
from peermask.store.checkpoint import hash_tensors, list_checkpoints
from peermask.store.folder import RunFolder, write_result
from peermask.store.table import read_rows

NAMES = ("red", "green", "blue")  # what a folder is called says nothing


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A fleet of three that has finished, and its file."""
    folder = tmp_path_factory.mktemp("finished")
    made = MemoryFleet(tiny_fleet(tiny(agents=3, rounds=3)), folder)
    assert set(made.run().values()) == {"finished"}
    return made.fleet, folder, written(folder, made.fleet)


@pytest.fixture
def copied(finished, tmp_path):
    """The fleet, its file, and the agents' folders as copied here."""
    fleet, folder, path = finished
    for agent, name in enumerate(NAMES):
        shutil.copytree(folder / f"agent-{agent}", tmp_path / name)
    return fleet, path, [tmp_path / name for name in NAMES]


def test_agents_are_told_by_what_their_folder_says(copied, tmp_path):
    fleet, _, (zero, one, two) = copied
    run = collect_run(fleet, [two, zero, one], tmp_path / "run")
    assert run.status == "finished"
    assert run.hash == collect_run(fleet, [zero, one, two], tmp_path / "again").hash


def with_new_digests(folder):
    """As somebody with a purpose writes it."""
    write_result(RunFolder(folder), read_json(folder / "result.json"))


def test_a_lost_agent_is_named_and_the_others_can_be_collected(copied, tmp_path, call):
    _, path, (_, one, two) = copied
    collecting = ["fleet", "collect", path, two, one, "--out", tmp_path / "run"]
    line = refused(call(*collecting))
    assert "no folder of agent 0 among the 2 given" in line
    assert "--partial" in line
    assert not (tmp_path / "run").exists()
    code, out, err = call(*collecting, "--partial")
    assert (code, out) == (0, f"{tmp_path / 'run'}\n")
    assert err == "agent 0 missing: an unfinished run, with tables but without models\n"
    run = RunResult.open(tmp_path / "run")
    assert (run.status, run.hash, len(run.agents)) == ("unfinished", None, 3)
    assert run.manifest["missing_agents"] == [0]
    assert {row["agent"] for row in read_rows(run.folder.metrics)} == {"1", "2"}
    assert not run.folder.result.exists()
    assert not list(run.folder.checkpoints.iterdir())
    code, out, _ = call("show", run.root)
    assert (code, "unfinished" in out) == (0, True)
    messages = sum(int(row["links"]) for row in read_rows(run.folder.traffic))
    assert f"{messages} messages" in " ".join(out.split())  # of those that are there
    code, _, _ = call("report", run.root, "--out", tmp_path / "report")
    assert (code, bool(list(tmp_path.glob("report/*.html")))) == (0, True)
    assert "was made by a fleet" in refused(call("run", "--resume", run.root))  # nor is it simulated over


def test_partial_with_everybody_is_an_ordinary_run(copied, tmp_path):
    fleet, _, folders = copied
    assert collect_run(fleet, folders, tmp_path / "run", partial=True).status == "finished"
    assert "missing_agents" not in read_json(tmp_path / "run" / "manifest.json")


def test_two_folders_of_one_agent_are_named(copied, tmp_path):
    fleet, _, (zero, _, two) = copied
    with pytest.raises(NodeError, match=r"red and .*red are both of agent 0"):
        collect_run(fleet, [zero, zero, two], tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("manifest.json", "{}", r"green does not say which agent it is of \(manifest.json: agent\)"),
        ("manifest.json", '{"agent": 1, "agents": [1], "dataset": []}', r"manifest.json does not say what agent 1"),
        ("manifest.json", '{"agent": 7}', r"green is of agent 7; this fleet has agents 0 to 2"),
        ("metrics.csv", "", r"metrics.csv is damaged \(it does not hold what it held when result.json"),
        ("metrics.csv", "all,gone\n", r"metrics.csv"),
        ("metrics.csv", "round,agent\n3,1\n", r"metrics.csv"),
        ("metrics.csv", "hello\nworld\n", r"metrics.csv"),
        ("traffic.csv", "round,agent\nthree,1\n", r"traffic.csv"),
        ("result.json", "[]", r"result.json is not a JSON object"),
    ],
)  # fmt: skip
def test_damaged_files_are_one_line_and_leave_nothing(copied, tmp_path, name, text, said):
    fleet, _, folders = copied
    (folders[1] / name).write_text(text)
    with pytest.raises(PeermaskError, match=said):
        collect_run(fleet, folders, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)


def test_rows_of_another_agent_are_refused(copied, tmp_path):
    fleet, _, folders = copied
    shutil.copy(folders[0] / "metrics.csv", folders[1] / "metrics.csv")
    with_new_digests(folders[1])
    with pytest.raises(NodeError, match=r"metrics.csv has a row of agent 0, but its folder is of agent 1"):
        collect_run(fleet, folders, tmp_path / "run")


def test_a_lost_checkpoint_is_named(copied, tmp_path):
    fleet, _, folders = copied
    shutil.rmtree(folders[2] / "checkpoints")
    with pytest.raises(NodeError, match=r"blue/checkpoints holds no checkpoint of agent 2"):
        collect_run(fleet, folders, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_failed_collection_does_not_block_the_next(copied, tmp_path, monkeypatch):
    fleet, _, folders = copied
    (tmp_path / "swarm" / "agents").mkdir(parents=True)
    for out in (tmp_path / "run", tmp_path / "swarm"):
        with monkeypatch.context() as patched:
            patched.setattr(collect, "summary_of", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                collect_run(fleet, folders, out)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted((*NAMES, "swarm"))
        assert [path.name for path in (tmp_path / "swarm").iterdir()] == ["agents"]
    for out in (tmp_path / "run", tmp_path / "swarm"):
        assert collect_run(fleet, folders, out).status == "finished"
        shutil.rmtree(out)


def test_a_swarm_collects_again_over_what_it_collected_before(copied, tmp_path):
    fleet, _, folders = copied
    out = tmp_path / "swarm"
    (out / "agents").mkdir(parents=True)
    (out / "absences.csv").write_text("of an earlier time")
    first = collect_run(fleet, folders, out)
    assert collect_run(fleet, folders, out).hash == first.hash
    assert read_rows(out / "absences.csv") == []
    held = {path.name for path in out.iterdir()}
    folders = {"agents", "checkpoints", "masks"}
    assert held == folders | {"config.toml", "manifest.json", "result.json", *TABLES} - {"trace.csv"}  # of no such run


def changed(folder, change):
    """The last checkpoint of a folder, with its tensors changed."""
    path = list_checkpoints(folder / "checkpoints")[-1]
    with safetensors.safe_open(path, framework="pt") as file:
        meta, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors = {name: change(tensor).contiguous() for name, tensor in tensors.items()}
    meta["digest"] = hash_tensors(tensors, meta["progress"])  # as somebody with a purpose writes it
    safetensors.torch.save_file(tensors, path, meta)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensor: tensor[:, :-1] if tensor.ndim > 1 else tensor, "is not of one agent of this experiment"),
        (lambda tensor: tensor.repeat(2, *[1] * (tensor.ndim - 1)), "is not of one agent of this experiment"),
        (lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, "is not of one agent"),
        (lambda tensor: tensor * float("nan") if tensor.is_floating_point() else tensor, "is NaN or infinite"),
    ],
    ids=["narrower", "of two agents", "another type", "nan"],
)
def test_a_checkpoint_of_another_shape_or_without_numbers_is_named(copied, tmp_path, change, words):
    fleet, _, folders = copied
    changed(folders[1], change)
    with pytest.raises(NodeError, match=words) as refused:
        collect_run(fleet, folders, tmp_path / "run")
    assert "green" in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["manifest.json", "metrics.csv", "result.json", "masks/round-000009.npz"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(copied, tmp_path, name):
    fleet, _, folders = copied
    (folders[2] / name).unlink(missing_ok=True)
    os.mkfifo(folders[2] / name)
    with pytest.raises(NodeError, match="is neither a file nor a folder"):
        collect_run(fleet, folders, tmp_path / "run")


def test_a_small_mask_file_that_unpacks_to_much_is_refused_before_it_does(copied, tmp_path):
    fleet, _, folders = copied
    bomb = max((folders[0] / "masks").glob("*.npz"))
    np.savez_compressed(bomb, masks=np.zeros((2**20, 111), np.uint8))  # 111 bytes are the masks of one agent
    assert bomb.stat().st_size < 2**18
    tracemalloc.start()
    with pytest.raises(RunError, match="are damaged"):
        collect_run(fleet, folders, tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25
