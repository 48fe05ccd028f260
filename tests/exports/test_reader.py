"""Exported models read back: the three kinds of file answer alike, and every other file is one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from export_cases import undecided

from peermask.cli.main import main
from peermask.data import datasets
from peermask.errors import ExportError
from peermask.exports.predict import evaluate, read_rows
from peermask.exports.reader import open_model
from peermask.exports.write import export, export_all
from peermask.run.result import RunResult

onnx = pytest.importorskip("onnx")
KINDS = (".ticket", ".onnx", ".safetensors")


@pytest.fixture(scope="module")
def files(result: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of agent 1 in all three kinds."""
    folder = tmp_path_factory.mktemp("files")
    for suffix in KINDS:
        export(result, 1, folder / f"a{suffix}")
    return folder


def command(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code in (0, None)


def test_all_kinds_answer_as_the_agent_does(result: RunResult, files: Path) -> None:
    digits = datasets["digits"].make()
    raw = digits.test.inputs[:50]
    wanted = result.local_models()[1](raw)
    for suffix in KINDS:
        model = open_model(files / f"a{suffix}")
        assert (model.shape, model.labels, model.readout) == ((1, 8, 8), result.agents[1].labels, result.readout)
        assert model.classes == digits.classes
        assert torch.allclose(model.outputs(raw), wanted, atol=1e-4)
    ticket, by_onnx, plain = (evaluate(files / f"a{suffix}", digits) for suffix in KINDS)
    assert plain == ticket
    assert (by_onnx.samples, by_onnx.own_samples) == (ticket.samples, ticket.own_samples)
    assert abs(by_onnx.right - ticket.right) <= undecided(result.local_models()[1](digits.test.inputs))
    assert by_onnx.figures == pytest.approx(ticket.figures, abs=0.005)


def test_evaluate_and_predict_several_files_as_json(
    result: RunResult, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = [files / f"a{suffix}" for suffix in KINDS]
    command("evaluate", *paths, "--dataset", "digits", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [one["file"] for one in found] == list(map(str, paths))
    assert {one["samples"] for one in found} == {360}
    ticket, by_onnx, plain = (round(360 * one["accuracy"]) for one in found)
    assert plain == ticket
    images = datasets["digits"].make().test.inputs
    outputs = result.local_models()[1](images)
    assert abs(by_onnx - ticket) <= undecided(outputs)
    best = outputs.topk(2).values
    clearest = int((best[:, 0] - best[:, 1]).argmax())
    image.fromarray((images[clearest, 0].numpy() * (255 / 16)).round().astype(np.uint8)).save(files / "digit.png")
    tops = []
    for path in paths:
        command("predict", path, files / "digit.png", "--json", "--top", 2)
        (one,) = json.loads(capsys.readouterr().out)
        assert len(one["classes"]) == 2
        tops.append(one["classes"][0]["class"])
    assert tops == [str(int(outputs[clearest].argmax()))] * 3


def test_all_agents_at_once(result: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("export", result.root, "--agent", "all", "--to", tmp_path / "agent-{agent}.safetensors", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [one["agent"] for one in found] == [0, 1, 2]
    for agent, model in enumerate(result.local_models()):
        tensors = safetensors.torch.load_file(tmp_path / f"agent-{agent}.safetensors")
        assert all(torch.equal(tensors[name], value) for name, value in model.network.state_dict().items())
    with pytest.raises(ExportError, match=r"is one file for all agents; use \{agent\} for the number"):
        export_all(result.root, tmp_path / "a.ticket")
    with pytest.raises(ExportError, match="exists; give another name"):
        export_all(result.root, tmp_path / "agent-{agent}.safetensors")


def saved(path: Path, change: str, value: object) -> Path:
    """The file of a model with one thing of its metadata or tensors changed."""
    tensors = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
        about = file.metadata()
    del about["sha256"]  # as version 1.0 wrote it
    if isinstance(value, torch.Tensor):
        tensors[change] = value
    elif value is None:
        del about[change]
    else:
        about[change] = str(value)
    other = path.with_name("changed.safetensors")
    safetensors.torch.save_file(tensors, other, metadata=about)
    return other


@pytest.mark.parametrize(
    ("change", "value", "words"),
    [
        ("classes", None, "does not say which classes and labels it answers among \\(classes\\)"),
        ("labels", "[99]", "has label 99 of 10 classes"),
        ("architecture", None, "does not say which network its weights are of"),
        ("architecture", '{"name": null, "shape": [1, 8, 8], "layers": ["*"]}', "given from Python"),
        ("architecture", '{"name": "none", "shape": [1, 8, 8], "layers": ["*"]}', "unknown model 'none'"),
        ("0.weight", torch.zeros(8, 1, 3, 4), "0.weight must be float32"),
        ("dtype", None, "does not say what inputs it takes \\(dtype\\)"),
        ("normalisation", '{"mean": [1, 2], "std": [1, 2]}', "has 2 means for 1 features, channels or outputs"),
    ],
)
def test_weights_that_cannot_be_read_are_one_line(files: Path, change: str, value: object, words: str) -> None:
    with pytest.raises(ExportError, match=words):
        open_model(saved(files / "a.safetensors", change, value))


def test_files_that_are_no_models_are_one_line(files: Path, tmp_path: Path) -> None:
    for suffix, words in ((".onnx", "is not a model that onnxruntime reads"), (".safetensors", "is not a safetensors")):
        (tmp_path / f"a{suffix}").write_bytes(b"x" * 100)
        with pytest.raises(ExportError, match=words):
            open_model(tmp_path / f"a{suffix}")
    with pytest.raises(ExportError, match=r"suffix '.pt'; did you mean|suffix '.pt'; known"):
        open_model(tmp_path / "a.pt")
    with pytest.raises(ExportError, match="cannot be read: No such file"):
        open_model(tmp_path / "none.onnx")
    plain = onnx.load(files / "a.onnx")
    del plain.metadata_props[:]
    onnx.save(plain, tmp_path / "plain.onnx")
    with pytest.raises(ExportError, match="only files that `peermask export` wrote can be read"):
        open_model(tmp_path / "plain.onnx")


def test_onnx_models_of_another_form_are_one_line(files: Path, tmp_path: Path) -> None:
    """A second input, images of another size than its layers take, and classes that it has no outputs for."""
    two, large, few = (onnx.load(files / "a.onnx") for _ in range(3))
    for model in (two, large, few):
        assert model.metadata_props.pop().key == "peermask.sha256"  # as version 1.0 wrote it
    two.graph.input.append(onnx.helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, [1]))
    large.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 12
    next(one for one in few.metadata_props if one.key == "peermask.classes").value = '["a", "b", "c"]'
    next(one for one in few.metadata_props if one.key == "peermask.labels").value = "[0]"
    for model, words in (
        (two, r"not one batch of inputs"),
        (large, "does not run"),
        (few, "does not give one output for each of its 3 classes"),
    ):
        onnx.save(model, tmp_path / "changed.onnx")
        with pytest.raises(ExportError, match=words):
            open_model(tmp_path / "changed.onnx")


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors"])
def test_a_file_that_has_changed_is_refused(files: Path, tmp_path: Path, suffix: str) -> None:
    whole = (files / f"a{suffix}").read_bytes()
    changed = tmp_path / f"a{suffix}"
    about = whole.replace(b"digits", b"ditigs", 1)  # in the metadata
    weight = bytearray(whole)
    weight[whole.index(b"peermask.agent") - 200 if suffix == ".onnx" else -100] ^= 1
    for data in (about, bytes(weight)):
        changed.write_bytes(data)
        assert data != whole
        with pytest.raises(ExportError, match="does not match its SHA-256: it is damaged or was changed; export it"):
            open_model(changed)


def test_digests_by_hand(files: Path) -> None:
    whole = (files / "a.onnx").read_bytes()
    told = json.loads(onnx.load(files / "a.onnx").metadata_props[-1].value)
    assert whole.endswith(f'"{told}"'.encode())
    assert told == hashlib.sha256(whole[:-87]).hexdigest()
    data = (files / "a.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    told = header["__metadata__"].pop("sha256")
    assert told == hashlib.sha256(json.dumps(header, sort_keys=True).encode() + data[end:]).hexdigest()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([["a", "b"]]), "inputs are numbers"),
        (np.zeros((1, 3), np.uint8), r"has shape \(1, 3\); the model takes \[n, 2\]"),
        (np.zeros((1, 2), np.float32), r"holds float32; the model takes whole numbers \(uint8\)"),
        (np.array([[0, 256]]), "has values from 0 to 256; the model takes 0 to 255"),
    ],
)
def test_raw_inputs_that_do_not_fit_are_one_line(array: np.ndarray, words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ExportError, match=words):
        read_rows(tmp_path / "a.npy", (2,), "uint8")


def test_one_raw_input_is_a_batch_and_half_a_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([3, 255]))
    assert read_rows(path, (2,), "uint8").tolist() == [[3, 255]]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ExportError, match="claims 16 bytes and has 8: it is damaged"):
        read_rows(path, (2,), "uint8")
