"""Every kind of exported file, read back, takes raw inputs of every shape and answers for every task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from task_cases import CASES, config

from peermask.cli.main import main
from peermask.config.file import make_config
from peermask.exports.predict import evaluate
from peermask.exports.reader import open_model
from peermask.exports.write import export
from peermask.run.execution import Execution
from peermask.run.runner import run_experiment

pytest.importorskip("onnx")
KINDS = (".ticket", ".onnx", ".safetensors")


@pytest.mark.parametrize("case", list(CASES))
def test_all_kinds_take_raw_inputs_of_every_shape_and_task(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, changes, _ = CASES[case]
    data = make()
    values = config(**changes, rounds=2)
    result = run_experiment(make_config(values), tmp_path / "run", dataset=data, execution=Execution("cpu"))
    raw = data.test.inputs[:10]
    wanted = result.local_models()[1](raw)
    np.save(tmp_path / "rows.npy", raw.numpy())
    found, said = [], []
    for suffix in KINDS:
        path = tmp_path / f"a{suffix}"
        export(result, 1, path)
        model = open_model(path)
        assert (model.shape, model.task, model.classes) == (data.shape, data.task, data.classes)
        assert model.inputs is not None
        assert (model.inputs.normalisation, model.inputs.target_scale) == (data.normalisation, data.target_scale)
        assert (model.inputs.dtype, model.inputs.vocabulary) == (str(raw.dtype)[6:], data.vocabulary)
        assert torch.allclose(model.outputs(raw), wanted, rtol=1e-4, atol=1e-4)
        found.append(evaluate(path, data))
        with pytest.raises(SystemExit):
            main(["predict", str(path), str(tmp_path / "rows.npy"), "--json", "--top", "1"])
        said.append(json.loads(capsys.readouterr().out))
    assert [one.figures for one in found[1:]] == [pytest.approx(found[0].figures, rel=1e-4)] * 2
    assert [one["row"] for one in said[0]] == list(range(10))
    for other in said[1:]:
        for one, first in zip(other, said[0], strict=True):
            if data.task == "regression":
                assert [value["output"] for value in one["values"]] == list(data.classes)
                assert one["values"][0]["value"] == pytest.approx(first["values"][0]["value"], rel=1e-3, abs=1e-3)
            else:
                assert one["classes"][0]["probability"] == pytest.approx(first["classes"][0]["probability"], rel=1e-3)
