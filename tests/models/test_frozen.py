"""The seed is the model: these very numbers, on every machine and version."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from peermask.models.architectures import alexnet, mlp, resnet18
from peermask.models.frozen import frozen_weights, inits
from peermask.models.layout import find_layout

ALEXNET = find_layout(alexnet((3, 32, 32), 10))


def test_the_checksum_of_seed_zero_is_fixed_for_good() -> None:
    """If this fails, every ticket and checkpoint made before is void: that is a breaking change."""
    assert frozen_weights(ALEXNET, "signed-constant", "zero", 0).checksum == "305fe7c945bbdbf8a814bf3939c57c85"


def test_signed_constant_has_one_magnitude_per_layer_and_both_signs() -> None:
    values = frozen_weights(ALEXNET, "signed-constant", "zero", 3).values
    for layer in ALEXNET.masked:
        part = values[layer.span]
        assert part.abs().unique().tolist() == pytest.approx([math.sqrt(2 / layer.fan_in)])
        assert abs(float(part.sign().mean())) < 0.05


@pytest.mark.parametrize(
    ("init", "deviation"),
    [
        ("uniform-pm1", lambda _: 1 / math.sqrt(3)),
        ("torch-default", lambda fan_in: 1 / math.sqrt(3 * fan_in)),
        ("kaiming-normal", lambda fan_in: math.sqrt(2 / fan_in)),
        ("kaiming-uniform", lambda fan_in: math.sqrt(2 / fan_in)),
    ],
)
def test_each_init_has_its_spread(init: str, deviation) -> None:  # type: ignore[no-untyped-def]
    values = frozen_weights(ALEXNET, init, "zero", 0).values
    for layer in ALEXNET.masked:
        assert float(values[layer.span].std()) == pytest.approx(deviation(layer.fan_in), rel=0.05)


def test_every_init_is_covered() -> None:
    assert {entry.name for entry in inits} == {
        "signed-constant",
        "uniform-pm1",
        "torch-default",
        "kaiming-normal",
        "kaiming-uniform",
    }


def test_biases_are_zero_or_drawn_and_norms_start_as_identity() -> None:
    bias = ALEXNET.kept[0]
    assert not frozen_weights(ALEXNET, "signed-constant", "zero", 0).values[bias.span].any()
    drawn = frozen_weights(ALEXNET, "signed-constant", "torch-default", 0).values[bias.span]
    assert float(drawn.abs().max()) <= 1 / math.sqrt(bias.fan_in)
    assert drawn.any()
    layout = find_layout(resnet18((3, 8, 8), 10, width=4))
    values = frozen_weights(layout, "signed-constant", "zero", 0).values
    for layer in layout.kept:
        if layer.kind == "norm-weight":
            assert bool((values[layer.span] == 1).all())


def test_parameters_of_ones_own_are_drawn_as_large_as_embeddings() -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.head = nn.Parameter(torch.zeros(50, 40)), nn.Linear(40, 2)

    layout = find_layout(Places())
    place = next(layer for layer in layout.kept if layer.name == "place")
    values = frozen_weights(layout, "signed-constant", "zero", 0).values[place.span]
    assert float(values.std()) == pytest.approx(1.0, rel=0.05)


def test_the_last_layer_of_a_regression_is_drawn_at_a_quarter() -> None:
    layout = find_layout(mlp((4,), 2, hidden=(2, 8)))  # the first layer has two filters as well
    plain = frozen_weights(layout, "signed-constant", "zero", 0).values
    values = frozen_weights(layout, "signed-constant", "zero", 0, regressed=2).values
    last = layout.masked[-1]
    assert torch.equal(values[: last.offset], plain[: last.offset])
    assert torch.allclose(values[last.span].abs(), torch.full((16,), 0.25 * 0.5))  # sqrt(2 / 8) = 1/2
    given = {last.name: plain[last.span].view(last.shape)}
    assert torch.equal(frozen_weights(layout, "signed-constant", "zero", 0, given, regressed=2).values, plain)


def test_seeds_and_architectures_have_checksums_of_their_own() -> None:
    other = find_layout(alexnet((3, 32, 32), 7))
    sums = {
        frozen_weights(ALEXNET, "signed-constant", "zero", 0).checksum,
        frozen_weights(ALEXNET, "signed-constant", "zero", 1).checksum,
        frozen_weights(other, "signed-constant", "zero", 0).checksum,
    }
    assert len(sums) == 3


def test_values_are_float32_and_finite() -> None:
    values = frozen_weights(ALEXNET, "kaiming-normal", "zero", 0).values
    assert values.dtype == torch.float32
    assert bool(values.isfinite().all())
