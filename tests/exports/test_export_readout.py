"""A model that answers among its agent's labels does so wherever it is taken."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from export_cases import run_small, undecided
from test_export_files import command
from test_ticket import sealed
from torch import Tensor, nn

import peermask
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.data.normalisation import FromRaw
from peermask.errors import ExportError
from peermask.exports.personal import open_personal
from peermask.exports.predict import evaluate
from peermask.exports.slim import slim
from peermask.exports.ticket import decode_ticket
from peermask.exports.write import export, make_ticket
from peermask.models.outputs import OwnLabels
from peermask.run.result import RunResult

AGENT = 1
DIGITS: Dataset = datasets["digits"].make()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Steps so small that models still answer labels they should not."""
    path = tmp_path_factory.mktemp("own") / "run"
    return run_small(path, algorithm={"name": "mce-pl", "lr": 1e-3}, readout="own")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return DIGITS.test.inputs


def accuracy(result: RunResult, answers: Tensor) -> float:
    """On the test samples of the agent's labels, as the run measures it."""
    labels = DIGITS.test.targets
    held = torch.isin(labels, torch.tensor(result.agents[AGENT].labels))
    return float((answers == labels)[held].float().mean())


def test_the_readout_matters_here(own: RunResult, images: Tensor) -> None:
    model = own.local_models()[AGENT]
    assert isinstance(model, FromRaw)
    assert isinstance(model.network, OwnLabels)
    assert accuracy(own, model(images).argmax(1)) == pytest.approx(own.agents[AGENT].test_accuracy_last, abs=1e-6)
    outside = model.network.network(DIGITS.normalise(images)).argmax(1).unique().tolist()
    assert set(outside) - set(own.agents[AGENT].labels)


def test_a_ticket_answers_as_the_run_said(own: RunResult, tmp_path: Path, images: Tensor) -> None:
    export(own, AGENT, tmp_path / "a.ticket")
    model = peermask.load_ticket(tmp_path / "a.ticket")
    assert torch.equal(model(images), own.local_models()[AGENT](images))
    found = evaluate(tmp_path / "a.ticket", DIGITS)
    assert found.readout == "own"
    assert found.own_right / found.own_samples == pytest.approx(own.agents[AGENT].test_accuracy_last, abs=1e-6)


def test_onnx_has_the_readout_in_its_graph(own: RunResult, tmp_path: Path, images: Tensor) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    exported = export(own, AGENT, tmp_path / "a.onnx")
    assert any("dead filters removed" in line for line in exported.lines)
    about = {entry.key: json.loads(entry.value) for entry in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert about["peermask.readout"] == "own"
    session = runtime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"inputs": images.numpy()})
    answers = torch.from_numpy(logits.argmax(1))
    model = own.local_models()[AGENT]
    assert int((answers != model(images).argmax(1)).sum()) <= undecided(model(images))
    assert set(answers.tolist()) <= set(own.agents[AGENT].labels)


def test_safetensors_say_how_to_answer(own: RunResult, tmp_path: Path, images: Tensor) -> None:
    export(own, AGENT, tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="pt") as file:  # type: ignore[no-untyped-call]
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    assert about["readout"] == "own"
    labels = ast.literal_eval(about["labels"])
    network = own.local_models()[AGENT].get_submodule("network.network")
    assert isinstance(network, nn.Module)
    network.load_state_dict(tensors)
    answers = torch.tensor(labels)[network(DIGITS.normalise(images))[:, labels].argmax(1)]
    assert accuracy(own, answers) == pytest.approx(own.agents[AGENT].test_accuracy_last, abs=1e-6)


def test_predict_and_evaluate_answer_among_its_labels(
    own: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    export(own, AGENT, tmp_path / "a.ticket")
    pixels = (DIGITS.test.inputs[0, 0].numpy() * (255 / DIGITS.normalisation.high)).round().astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "digit.png")
    command(["predict", str(tmp_path / "a.ticket"), str(tmp_path / "digit.png"), "--top", "10"])
    named = capsys.readouterr().out.strip().split(": ")[1].split(", ")
    assert sorted(int(each.split()[0]) for each in named) == sorted(own.agents[AGENT].labels)
    command(["evaluate", str(tmp_path / "a.ticket"), "--dataset", "digits"])
    out = capsys.readouterr().out
    assert f"its own labels: {100 * own.agents[AGENT].test_accuracy_last:.2f} %" in out
    assert "answers were chosen among its own labels" in out


@pytest.mark.parametrize("labels", [[], [3, 10]])
def test_a_ticket_that_answers_among_labels_it_has_not_is_refused(own: RunResult, labels: list[int]) -> None:
    ticket = make_ticket(open_personal(own, AGENT))
    header: dict[str, Any] = json.loads(ticket.header.model_dump_json())
    header["about"]["labels"] = labels
    with pytest.raises(ExportError, match=r"answers among labels .* of 10 classes"):
        decode_ticket(sealed(header, ticket.frame))


def test_dead_filters_are_cut_out_under_a_readout(images: Tensor) -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).requires_grad_(False)
    network[0].weight[1:] = 0  # type: ignore[operator, index]
    module = OwnLabels(network, torch.tensor([True, False, True])).eval()
    cut = slim(module, (1, 8, 8))
    assert cut.removed == {"0": 3}
    torch.testing.assert_close(cut.module(images.float()), module(images.float()), atol=1e-5, rtol=1e-4)
