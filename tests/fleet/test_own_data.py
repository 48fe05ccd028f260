"""Devices that each have a data file of their own, which never leaves them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fleet_cases import PATIENT, tiny, tiny_fleet, written
from fleet_process import ProcessFleet

from peermask.data import from_arrays
from peermask.data.digits import digits
from peermask.data.normalisation import Statistics
from peermask.files import read_json
from peermask.fleet.agent import kind_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")
HELD = ((0, 1), (1, 2), (2, 3))  # labels of each device; none has all, and none has the highest
CONFIG = {
    "agents": 3,
    "graph": {"name": "complete"},
    "dataset": {"name": "npz", "path": "own.npz", "classes": 10},
    "partition": {"name": "everything"},
    "data": {"fraction": 1.0},
}


def save_own(folder, labels, **changes):
    """A device's folder with the digits of some labels."""
    folder.mkdir()
    arrays = {}
    for name, split in (("train", digits().train), ("test", digits().test)):
        chosen = np.isin(split.targets.numpy(), labels)
        arrays[f"x_{name}"] = split.inputs.numpy()[chosen] * 15  # bytes from 0 to 240
        arrays[f"y_{name}"] = split.targets.numpy()[chosen]
    np.savez_compressed(folder / "own.npz", **(arrays | changes))
    return folder


def test_every_device_learns_from_its_own_file(tmp_path, monkeypatch):
    devices = [save_own(tmp_path / f"device-{agent}", labels) for agent, labels in enumerate(HELD)]
    held = tiny_fleet(tiny(**CONFIG, rounds=60, batch_size=32, model={"name": "mlp", "hidden": [32]}), **PATIENT)
    with ProcessFleet(written(tmp_path, held), held, folders=devices) as made:
        made.start()
        assert made.join() == [0] * 3
        assert all(made.result(agent)["absent"] == {} for agent in range(3))
        monkeypatch.chdir(devices[0])  # whoever collects needs one such file, for its shape
        run = made.collect()
    manifest = read_json(run.root / "manifest.json")
    assert [tuple(row["labels"]) for row in manifest["agents"]] == list(HELD)
    held = {read_json(made.out(agent) / "manifest.json")["dataset"]["sha256"] for agent in range(3)}
    assert len(held | {manifest["dataset"]["sha256"]}) == 4  # nobody's own, and the same if collected again
    assert run.mean_accuracy > 0.6  # of two labels each


def test_devices_answer_among_the_labels_of_their_own_files(tmp_path, monkeypatch):
    devices = [save_own(tmp_path / f"device-{agent}", labels) for agent, labels in enumerate(HELD)]
    held = tiny_fleet(tiny(**CONFIG, algorithm={"name": "dsgd"}, readout="own"), **PATIENT)
    with ProcessFleet(written(tmp_path, held), held, folders=devices) as made:
        made.start()
        assert made.join() == [0] * 3
        monkeypatch.chdir(devices[0])
        run = made.collect()
    test = digits().test
    for agent, (labels, model) in enumerate(zip(HELD, run.local_models(), strict=True)):
        own = np.isin(test.targets.numpy(), labels)
        answers = model(test.inputs[own] * 15).argmax(1)
        assert set(answers.tolist()) <= set(labels)
        right = float((answers == test.targets[own]).float().mean())
        assert right == pytest.approx(run.agents[agent].test_accuracy_last, abs=1e-6)
        assert made.result(agent)["test_accuracy"] == pytest.approx(run.agents[agent].test_accuracy)


def test_a_file_of_another_shape_is_refused_by_the_others(tmp_path):
    odd = np.zeros((20, 9, 9), dtype=np.uint8)
    labels = np.arange(20) % 2
    devices = [
        *(save_own(tmp_path / f"device-{agent}", HELD[agent]) for agent in (0, 1)),
        save_own(tmp_path / "device-2", HELD[2], x_train=odd, y_train=labels, x_test=odd, y_test=labels),
    ]
    held = tiny_fleet(tiny(**CONFIG), **PATIENT)
    with ProcessFleet(written(tmp_path, held), held, folders=devices) as made:
        made.start()
        assert made.join() == [0, 0, 2]
        assert any(
            "agent 2 was refused: its data is '9x9 images, 1 channels, 10 classes', here it is '8x8 images" in line
            for line in made.said(0)
        )
        assert "images of the same size" in made.said(2)[-1]


def test_devices_compare_how_their_data_is_scaled():
    table = np.arange(12.0).reshape(6, 2)

    def kind(**options):
        data = from_arrays(table, table[:, 0], table, table[:, 0], task="regression", **options)
        return kind_of(data)

    given = {"normalise": {"mean": [1, 2], "std": [3, 4]}, "target_scale": Statistics(mean=(0,), std=(1,))}
    assert kind(**given) == kind(**given)
    assert kind(**given) != kind(normalise=given["normalise"])
    assert kind(**given) != kind(target_scale=given["target_scale"])
    assert kind().startswith("2 numbers, regression with 1 outputs, mean and std ")
    assert kind_of(digits()) == "8x8 images, 1 channels, 10 classes"
