"""Statistics of data that nobody has all of: declared by devices, combined in the fleet file, used by all."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from fleet_cases import tiny, tiny_fleet, written
from fleet_process import ProcessFleet

from peermask.cli.main import main
from peermask.data.normalisation import Statistics, statistics_of
from peermask.errors import NodeError
from peermask.files import read_json
from peermask.fleet.fleet import load_fleet, write_fleet
from peermask.fleet.statistics import (
    Moments,
    Summary,
    combined,
    moments,
    read_summary,
    summary_of,
    with_statistics,
    write_summary,
)

RUN = "0" * 16
CONFIG = {
    "agents": 3,
    "graph": {"name": "complete"},
    "dataset": {"name": "npz", "path": "own.npz", "kind": "features", "task": "regression"},
    "partition": {"name": "everything"},
    "data": {"fraction": 1.0},
}


def summary(agent, samples, mean, variance, run=RUN, **more):
    return Summary(run=run, agent=agent, samples=samples, inputs=Moments(mean=mean, variance=variance), **more)


def together(*summaries, far=10.0):
    return combined(summaries, [each.inputs for each in summaries], "input", far)


def test_two_devices_by_hand():
    """1, 2, 3 here and 7 there: mean 13/4, variance ((9/4)² + (5/4)² + (1/4)² + (15/4)²)/4 = 83/16."""
    here, there = summary(0, 3, (2.0,), (2 / 3,)), summary(1, 1, (7.0,), (0.0,))
    found = together(here, there)
    assert found.mean == (3.25,)
    assert found.std[0] == pytest.approx((83 / 16) ** 0.5, rel=1e-6)
    assert together(there, here) == found


def test_combined_statistics_are_those_of_all_data():
    torch.manual_seed(0)
    parts = [torch.randn(n, 3, 4) * 5 + shift for n, shift in ((7, 0), (30, 4), (11, -2))]
    each = [Summary(run=RUN, agent=i, samples=len(part), inputs=moments(part)) for i, part in enumerate(parts)]
    found, wanted = together(*each), statistics_of(torch.cat(parts))
    assert found.mean == pytest.approx(wanted.mean, rel=1e-6)
    assert found.std == pytest.approx(wanted.std, rel=1e-6)


def test_a_constant_feature_keeps_its_scale():
    assert together(summary(0, 3, (5.0,), (0.0,)), summary(1, 2, (5.0,), (0.0,))) == Statistics(mean=(5.0,), std=(1.0,))


def test_a_device_far_from_all_others_is_refused():
    honest = [summary(i, 10, (float(i),), (1.0,)) for i in range(3)]
    with pytest.raises(
        NodeError, match=r"^agent 3 declares mean 1e\+29 and deviation 1 of input 0; the medians are 1.5"
    ):
        together(*honest, summary(3, 10, (1e29,), (1.0,)))
    with pytest.raises(NodeError, match=r"^agent 3 declares mean 1 and deviation 1e\+06 of input 0"):
        together(*honest, summary(3, 10, (1.0,), (1e12,)))
    assert together(*honest, summary(3, 10, (1e6,), (1.0,)), far=float("inf")).mean == pytest.approx((250000.75,))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"samples": 0}, "samples = 0"),
        ({"samples": 10**15}, "samples = 1000000000000000"),
        ({"inputs": {"mean": [float("nan")], "variance": [1]}}, "inputs.mean.0 = nan"),
        ({"inputs": {"mean": [1e300], "variance": [1]}}, "inputs.mean.0 = 1e+300"),
        ({"inputs": {"mean": [1], "variance": [-1]}}, "inputs.variance.0 = -1"),
        ({"inputs": {"mean": [1, 2], "variance": [1]}}, "mean has 2 numbers and variance 1"),
        ({"more": 1}, "more: unknown key"),
    ],
)
def test_a_summary_with_other_numbers_is_one_line(change, line, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(json.loads(summary(0, 3, (1.0,), (1.0,)).model_dump_json()) | change))
    with pytest.raises(NodeError) as raised:
        read_summary(path)
    assert str(raised.value).startswith(f"summary {path}: ")
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_summary_that_cannot_be_read_is_one_line(tmp_path):
    path = tmp_path / "summary.json"
    with pytest.raises(NodeError, match=r"cannot be read: No such file .*; make it with `peermask fleet summary`"):
        read_summary(path)
    path.write_text("{")
    with pytest.raises(NodeError, match=r"summary .*summary.json is not JSON"):
        read_summary(path)
    with pytest.raises(NodeError, match=r"has 1 bytes, allowed: 0"):
        read_summary(path, largest=0)


def test_summaries_that_do_not_belong_together():
    fleet = tiny_fleet(tiny(**CONFIG))
    one, two, three = (summary(i, 5, (1.0, 2.0), (1.0, 1.0), run=fleet.run) for i in range(3))
    for given, line in (
        ([one, two], r"no summary of agents \[2\]"),
        ([one, two, two, three], "agent 1 has two summaries"),
        ([one, two, three.model_copy(update={"agent": 9})], "agent 9 does not exist"),
        ([one, two, three.model_copy(update={"run": RUN})], "of run 0000000000000000"),
        ([one, summary(1, 5, (1.0,), (1.0,), run=fleet.run), three], "agent 1 declares 1 input features, agent 0 2"),
        ([one, two, three.model_copy(update={"targets": one.inputs})], "some agents declare targets"),
    ):
        with pytest.raises(NodeError, match=line):
            with_statistics(fleet, given)
    assert with_statistics(fleet, [one, two], partial=True).experiment.dataset.options.model_dump()["normalise"][
        "mean"
    ] == (1.0, 2.0)
    with pytest.raises(NodeError, match="has a fixed scale"):
        summary_of(tiny_fleet(tiny(agents=3)), 0)


def save_own(folder, shift):
    """A device whose measurements are around another mean."""
    folder.mkdir()
    draw = np.random.default_rng(shift)
    x = draw.normal(shift, 2, (40, 2))
    y = 3 * x[:, 0] - x[:, 1] + 100
    np.savez(folder / "own.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")
def test_devices_with_files_of_their_own_agree_on_a_scale(tmp_path, monkeypatch, capsys):
    """From each its summary, one fleet file for all, and a run over sockets with certificates."""
    devices = [save_own(tmp_path / f"device-{agent}", agent) for agent in range(3)]
    held = tiny_fleet(tiny(**CONFIG))
    path = written(tmp_path, held)
    for agent, folder in enumerate(devices):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main(["fleet", "summary", str(path), "--agent", str(agent), "--out", str(tmp_path / f"{agent}.json")])
        assert not ended.value.code, capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["fleet", "statistics", str(path), *(str(tmp_path / f"{agent}.json") for agent in (2, 0, 1))])
    assert not ended.value.code
    assert "mean and deviation of 90 samples of 3 agents" in capsys.readouterr().out
    agreed = load_fleet(path)
    wanted = statistics_of(torch.tensor(np.concatenate([np.load(d / "own.npz")["x_train"] for d in devices])).float())
    found = agreed.experiment.dataset.options.model_dump()["normalise"]
    assert found["mean"] == pytest.approx(wanted.mean, rel=1e-6)
    assert found["std"] == pytest.approx(wanted.std, rel=1e-6)
    with ProcessFleet(path, agreed, folders=devices) as made:
        made.start()
        assert made.join() == [0] * 3
        assert all(made.result(agent)["absent"] == {} for agent in range(3))
        scales = [read_json(made.out(agent) / "manifest.json")["inputs"] for agent in range(3)]
    assert scales[0] == scales[1] == scales[2]


def test_summaries_and_fleets_survive_being_written(tmp_path):
    made = summary(0, 3, (0.1,), (1e-30,), targets=Moments(mean=(1.0,), variance=(2.0,)))
    write_summary(tmp_path / "a.json", made)
    assert read_summary(tmp_path / "a.json") == made
    fleet = tiny_fleet(tiny(**CONFIG))
    each = [made.model_copy(update={"run": fleet.run, "agent": agent}) for agent in range(3)]
    write_fleet(tmp_path / "fleet.toml", with_statistics(fleet, each))
    assert load_fleet(tmp_path / "fleet.toml").experiment.dataset.options.model_dump()["target_scale"]["mean"] == (1.0,)


def test_a_given_partition_counts_only_the_agent_s_own_samples(tmp_path):
    x = np.array([[1.0, 0.0], [3.0, 0.0], [10.0, 5.0]] * 4, np.float32)
    y, owner = np.arange(12) % 3, np.array([0, 0, 1] * 4)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, agent_train=owner, agent_test=owner)
    data = {"name": "npz", "path": str(tmp_path / "d.npz"), "kind": "features"}
    fleet = tiny_fleet(tiny(agents=3, partition="given", dataset=data, model="mlp"))
    found = summary_of(fleet, 0)
    assert (found.samples, found.inputs.mean, found.inputs.variance) == (8, (2.0, 0.0), (1.0, 0.0))
    assert summary_of(fleet, 1).inputs.mean == (10.0, 5.0)
    with pytest.raises(NodeError, match="has no training samples of agent 2; check agent_train"):
        summary_of(fleet, 2)
