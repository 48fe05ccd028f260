"""The class F, and inputs in the cube: anything else is refused."""

from __future__ import annotations

import pytest
import torch
from theory_cases import by_hand, kernel, some_layers, uniform

from peermask.errors import DataError, ModelError
from peermask.paper.theory.networks import Target, outputs, require_unit_inputs


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        (kernel(0.7, -0.6), "layer 1 of the target has l1 norm 1.3; class F allows at most 1"),
        (kernel(1.5), "layer 1 of the target has l1 norm 1.5; class F allows at most 1"),
        (kernel(float("nan")), "layer 1 of the target has l1 norm nan"),
    ],
)
def test_a_target_outside_the_class_is_refused(layer: torch.Tensor, line: str) -> None:
    with pytest.raises(ModelError, match=line) as caught:
        Target((layer,))
    assert "\n" not in str(caught.value)


def test_the_edge_of_the_class_is_inside() -> None:
    target = Target((kernel(0.25, -0.75), kernel(0.5).expand(1, 2, 1, 1)))
    assert (target.depth, target.weights, target.problems) == (2, 4, 4)


def test_outputs_are_equation_20_with_zero_padding() -> None:
    layers, image = some_layers(2, (2, 3, 2)), uniform(5, 2, 4, 4).abs()
    assert outputs(layers, image[None])[0].numpy() == pytest.approx(by_hand(layers, image.numpy()), abs=1e-14)


@pytest.mark.parametrize("value", [-0.1, 1.01, 16.0, float("nan")])
def test_an_input_outside_the_cube_is_refused(value: float) -> None:
    images = torch.zeros(2, 1, 3, 3)
    images[1, 0, 2, 2] = value
    with pytest.raises(DataError, match=r"the theorem needs \[0, 1\]: divide by the peak value"):
        require_unit_inputs(images, channels=1)


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(DataError, match=r"shape \[2, 3, 4, 4\]; the network takes \[n > 0, 1, D, D\]"):
        require_unit_inputs(torch.zeros(2, 3, 4, 4), channels=1)
