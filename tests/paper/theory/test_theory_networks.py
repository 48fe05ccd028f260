"""Networks of the theorem: the class F, inputs in the cube, and the agents' targets."""

from __future__ import annotations

import pytest
import torch
from theory_cases import by_hand, kernel, some_layers, uniform

from peermask.data.digits import digits
from peermask.errors import DataError, ModelError
from peermask.paper.theory.networks import (
    Examples,
    Target,
    accuracy,
    all_images,
    initial,
    outputs,
    require_unit_inputs,
    train,
    two_agents,
)

# The class F, and inputs in the cube: anything else is refused.


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


# Two agents' targets: trained inside class F from one initialisation, on different labels.


def test_the_start_is_in_the_class_and_the_same_for_a_seed() -> None:
    start = initial((1, 2, 6), 3, seed=0)
    assert [float(weight.abs().sum()) for weight in start] == pytest.approx([1, 1])
    assert all(torch.equal(a, b) for a, b in zip(start, initial((1, 2, 6), 3, seed=0), strict=True))


def test_a_target_learns_its_agents_labels_and_stays_in_the_class() -> None:
    agent, other = two_agents(digits(), shared=0)
    start = initial((1, 3, 6), 3, seed=0)
    target = train(start, agent.train, steps=60)  # Target() itself refuses what is outside F
    assert accuracy(target.layers, agent.test) > 0.7
    assert accuracy(target.layers, other.test) == 0  # labels it has never seen


def test_training_is_the_same_every_time() -> None:
    agent, _ = two_agents(digits(), shared=2)
    one, two = (train(initial((1, 2, 6), 3, seed=0), agent.train, steps=3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.layers, two.layers, strict=True))


def test_no_step_is_the_start_itself() -> None:
    agent, _ = two_agents(digits(), shared=1)
    start = initial((1, 2, 6), 3, seed=1)
    assert all(torch.allclose(a, b) for a, b in zip(train(start, agent.train, 0).layers, start, strict=True))


@pytest.mark.parametrize(("shared", "second"), [(0, (3, 4, 5)), (1, (2, 3, 4)), (3, (0, 1, 2))])
def test_agents_share_labels_but_no_training_image(shared: int, second: tuple[int, ...]) -> None:
    one, two = two_agents(digits(), shared)
    assert (one.labels, two.labels) == ((0, 1, 2), second)
    for agent in (one, two):
        assert set(agent.train.labels.tolist()) == set(agent.test.labels.tolist()) == set(agent.labels)
    seen = {image.numpy().tobytes() for image in one.train.images}
    assert not seen & {image.numpy().tobytes() for image in two.train.images}
    images = all_images((one, two))
    assert 0 <= images.min() <= images.max() <= 1


def test_images_that_are_not_divided_by_their_peak_are_refused() -> None:
    examples = Examples(torch.full((1, 1, 2, 2), 16.0), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(DataError, match=r"\[16, 16\]; the theorem needs \[0, 1\]"):
        train(initial((1, 2), 3, seed=0), examples, steps=1)
