"""Models as files: ONNX and safetensors, images and accuracy, and every way it can go wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import peermask
from commands import Refused
from peermask.cli.main import main
from peermask.data import datasets
from peermask.errors import ExportError
from peermask.exports.write import export
from peermask.run.result import RunResult

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def test_safetensors_hold_the_masked_weights(result: RunResult, tmp_path: Path) -> None:
    export(result, 2, tmp_path / "a.safetensors")
    tensors = safetensors.torch.load_file(tmp_path / "a.safetensors")
    wanted = result.local_models()[2].get_submodule("network").state_dict()
    assert set(tensors) == set(wanted)
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)


def test_onnx_is_slimmed_verified_and_measured(result: RunResult, tmp_path: Path) -> None:
    exported = export(result, 0, tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    about = {entry.key: json.loads(entry.value) for entry in model.metadata_props if entry.key.startswith("peermask.")}
    assert about["peermask.labels"] == list(result.agents[0].labels)
    text = "\n".join(exported.lines)
    for word in ("agree within", "dead filters removed", "size", "parameters", "multiply-adds", "latency"):
        assert word in text
    images = np.random.default_rng(0).integers(0, 17, (7, 1, 8, 8), dtype=np.uint8)  # raw, as the data set has them
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"inputs": images})
    wanted = result.local_models()[0](torch.from_numpy(images)).numpy()
    assert np.abs(logits - wanted).max() < 1e-4


def test_what_cannot_be_slimmed_is_exported_whole_and_said() -> None:
    from peermask.exports.onnx import make_onnx

    made = make_onnx(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()).eval(), torch.rand(8, 1, 4, 4), {}
    )
    assert made.slim is None
    assert made.obstacle == "layer 1 is a GroupNorm, through which dead filters cannot be followed"
    assert made.data == onnx.load_from_string(made.data).SerializeToString()


def test_a_model_that_differs_is_refused() -> None:
    from peermask.exports.onnx import measure_difference, to_onnx

    layer, examples = nn.Linear(4, 2), torch.ones(8, 1, 2, 2)
    module = nn.Sequential(nn.Flatten(), layer).eval()
    data = to_onnx(module, examples, {})
    assert measure_difference(data, module, examples) < 1e-4
    layer.weight.data += 1
    with pytest.raises(ExportError, match=r"differs from that of PyTorch by .*, more than 0\.0001"):
        measure_difference(data, module, examples)


def test_predict_and_evaluate_read_a_ticket(
    result: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    digits = datasets["digits"].make()
    export(result, 1, tmp_path / "a.ticket")
    pixels = (digits.test.inputs[0, 0].numpy() * (255 / digits.normalisation.high)).round().astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "digit.png")
    command(["predict", str(tmp_path / "a.ticket"), str(tmp_path / "digit.png"), "--top", "2"])
    logits = result.local_models()[1](digits.test.inputs[:1])[0]
    first = int(logits.argmax())
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'digit.png'}: {first} ")
    other = str(export(result, 0, tmp_path / "b.ticket").path)
    command(["evaluate", other, str(tmp_path / "a.ticket"), "--dataset", "digits", "--confusion"])
    answers = result.local_models()[1](digits.test.inputs).argmax(1)
    right = answers == digits.test.targets
    _, said = capsys.readouterr().out.split(f"{tmp_path / 'a.ticket'}\n")
    assert f"all labels: {100 * float(right.float().mean()):.2f} % ({int(right.sum())} of 360)" in said
    table = [list(map(int, line.split())) for line in said.splitlines()[-10:]]
    assert np.sum(table) == 360
    assert table[3][7] == int(((digits.test.targets == 3) & (answers == 7)).sum())


def command(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_mistakes_are_one_line(result: RunResult, tmp_path: Path, refused: Refused) -> None:
    run = str(result.root)
    for agent, target, message in (
        ("7", "a.ticket", "has no agent 7: its agents are 0 to 2"),
        ("-1", "a.ticket", "has no agent -1"),
        ("0", "a.pt", "unknown suffix '.pt'"),
        ("7", "made/a.ticket", "has no agent 7"),
        ("0", ".", "unknown suffix"),
    ):
        assert message in refused("export", run, "--agent", agent, "--to", str(tmp_path / target))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "file is not a folder" in refused("export", run, "--agent", "0", "--to", tmp_path / "file" / "a.ticket")
    (tmp_path / "d.ticket").mkdir()
    assert "is a folder" in refused("export", run, "--agent", "0", "--to", str(tmp_path / "d.ticket"))
    assert "not a run folder" in refused("export", str(tmp_path), "--agent", "0", "--to", "a.ticket")


def test_mistakes_with_tickets_and_images_are_one_line(result: RunResult, tmp_path: Path, refused: Refused) -> None:
    ticket, other = str(tmp_path / "a.ticket"), tmp_path / "x.png"
    export(result, 1, ticket)
    other.write_bytes(b"no picture")
    assert "cannot be read" in refused("predict", ticket, str(other))
    assert "cannot be read" in refused("predict", ticket, str(tmp_path / "nothing.png"))
    assert "is not an exported model" in refused("predict", str(other), str(other))
    assert "unknown dataset" in refused("evaluate", ticket, "--dataset", "digit")
    np.savez(tmp_path / "x.npz", **arrays())  # type: ignore[arg-type]
    wrong = ["evaluate", ticket, "--dataset", "npz", "--set", f"path={tmp_path / 'x.npz'}"]
    assert "takes inputs of 1x8x8 in 10 classes" in refused(*wrong)


def arrays() -> dict[str, np.ndarray]:
    images, labels = np.zeros((4, 3, 4, 4), np.uint8), np.array([0, 1, 0, 1])
    return {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}


def test_a_file_is_replaced_only_when_that_is_asked_for(result: RunResult, tmp_path: Path) -> None:
    target = tmp_path / "a.ticket"
    target.write_text("mine")
    with pytest.raises(ExportError, match=r"a\.ticket exists; give another name, or replace it with --force"):
        export(result, 0, target)
    assert target.read_text() == "mine"
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(result.root), "--agent", "0", "--to", str(target), "--force"])
    assert not stopped.value.code
    assert target.stat().st_size > 100


def test_what_is_too_quick_to_time_is_not_given_in_digits() -> None:
    from peermask.exports.write import _latency

    assert [_latency(seconds) for seconds in (3e-6, 1e-4, 0.0016862)] == ["under 0.1 ms", "0.100 ms", "1.686 ms"]


def test_a_folder_for_exports_is_made(result: RunResult, tmp_path: Path) -> None:
    assert export(result, 0, tmp_path / "models" / "new" / "a.ticket").path.is_file()


def test_macro_f1_of_own_labels_is_the_run_s(result: RunResult, tmp_path: Path) -> None:
    agent = result.agents[1]
    export(result, 1, tmp_path / "a.ticket")
    dataset = result.dataset or "digits"
    figures = peermask.evaluate(tmp_path / "a.ticket", dataset).figures
    assert figures["macro_f1_own"] == pytest.approx(agent.figures["macro_f1"], abs=1e-6)
