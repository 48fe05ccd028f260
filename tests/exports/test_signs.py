"""Weights as signs in 8, 4 or 2 bits: worked by hand, exact, and one line where they cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from peermask.errors import ExportError
from peermask.exports.reader import open_model
from peermask.exports.write import export
from peermask.run.result import RunResult

onnx = pytest.importorskip("onnx")


def test_signs_are_packed_lowest_bits_first() -> None:
    from peermask.exports.onnx import pack_signs

    signs = np.array([1, -1, 0, 1, -1], np.int8)
    assert pack_signs(signs, 8) == bytes([0x01, 0xFF, 0x00, 0x01, 0xFF])
    assert pack_signs(signs, 4) == bytes([0xF1, 0x10, 0x0F])
    # 1 -> 01, -1 -> 11, 0 -> 00: 01 00 11 01, then 11
    assert pack_signs(signs, 2) == bytes([0b01_00_11_01, 0b11])


@pytest.fixture(scope="module")
def floats(result: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agent 2's model with weights in 32 bits."""
    return export(result, 2, tmp_path_factory.mktemp("floats") / "model.onnx").path


@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("int4", 4), ("int2", 2)])
def test_a_model_of_signs_computes_what_the_float_one_does(
    result: RunResult, floats: Path, tmp_path: Path, precision: str, bits: int
) -> None:
    if not hasattr(onnx.TensorProto, precision.upper()):
        pytest.skip(f"this onnx does not know {precision}")
    exported = export(result, 2, tmp_path / "signs.onnx", precision=precision)
    raw = torch.randint(17, (20, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    whole, small = open_model(floats), open_model(tmp_path / "signs.onnx")
    assert torch.allclose(small.outputs(raw), whole.outputs(raw), atol=1e-5)
    from onnx import numpy_helper

    whole_weights = {held.name: held for held in onnx.load(floats).graph.initializer}
    model = onnx.load(tmp_path / "signs.onnx")
    stored = {held.name: held for held in model.graph.initializer}
    turned = [name for name in whole_weights if f"{name}/signs" in stored]
    assert len(turned) == 4  # two convolutions and two linear layers
    for name in turned:
        wanted = numpy_helper.to_array(whole_weights[name])
        assert len(stored[f"{name}/signs"].raw_data) == -(-wanted.size * bits // 8)
        signs = numpy_helper.to_array(stored[f"{name}/signs"]).astype(np.float32)
        assert np.array_equal(signs * numpy_helper.to_array(stored[f"{name}/magnitude"]), wanted)  # to the bit
    assert any(line.startswith("size") for line in exported.lines)


def test_weights_of_many_magnitudes_stay_and_are_named(result: RunResult, tmp_path: Path) -> None:
    from peermask.exports.onnx import make_onnx

    torch.manual_seed(0)
    mixed = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    mixed[1].weight.data = torch.tensor([[1.0, 0, -1, 0], [0, 1, 0, 1], [-1, 0, 0, 1]]) / 2
    made = make_onnx(mixed.eval(), torch.rand(8, 1, 2, 2), {}, "int8")
    assert list(made.left.values()) == [6]
    mixed[1].weight.data = torch.rand(3, 4)
    with pytest.raises(ExportError, match="--precision int8 holds -c, 0 or c, which no layer's weights are"):
        make_onnx(mixed.eval(), torch.rand(8, 1, 2, 2), {}, "int8")
    with pytest.raises(ExportError, match=r"--precision int8 is for .onnx files, not for a.ticket"):
        export(result, 0, tmp_path / "a.ticket", precision="int8")
    with pytest.raises(ExportError, match="--precision 'int3' is not one of float32, int8, int4, int2"):
        export(result, 0, tmp_path / "a.onnx", precision="int3")
