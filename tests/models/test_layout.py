"""Where parameters lie: masked weights first, found by type, configurable by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from peermask.errors import ModelError
from peermask.models.architectures import alexnet, resnet18
from peermask.models.layout import find_layout


def test_the_papers_network_has_the_papers_numbers() -> None:
    layout = find_layout(alexnet((3, 32, 32), 10))
    assert layout.sizes == (4_800, 204_800, 819_200, 196_608, 1_920)
    assert layout.weights == 1_227_328
    assert layout.total == 1_227_530


def test_masked_weights_come_first_and_the_vector_has_no_gaps() -> None:
    layout = find_layout(resnet18((3, 8, 8), 10, width=4))
    ends = [0]
    for layer in layout.layers:
        assert layer.offset == ends[-1]
        ends.append(layer.span.stop)
    assert ends[-1] == layout.total
    assert {layer.kind for layer in layout.masked} == {"conv", "linear"}
    assert {layer.kind for layer in layout.kept} == {"norm-weight", "norm-bias", "bias"}


def test_unflatten_gives_the_modules_own_parameters_back() -> None:
    module = alexnet((3, 32, 32), 10)
    layout = find_layout(module)
    own = dict(module.named_parameters())
    flat = torch.cat([own[layer.name].detach().flatten() for layer in layout.layers])[None]
    for name, view in layout.unflatten(flat).items():
        assert torch.equal(view[0], own[name])


def test_patterns_choose_what_is_masked() -> None:
    layout = find_layout(alexnet((3, 32, 32), 10), ["0.*", "15.*"])
    assert [layer.name for layer in layout.masked] == ["0.weight", "15.weight"]
    assert layout.total == 1_227_530


def test_a_pattern_that_matches_nothing_is_named() -> None:
    with pytest.raises(ModelError, match=r"mask\.layers: 'conv9' matches no layer; .*known: 0\.weight"):
        find_layout(nn.Sequential(nn.Conv2d(1, 2, 3)), ["conv9"])


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "batch norm"),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), "dropout"),
        (nn.Sequential(nn.ReLU()), "no convolution, linear, embedding or recurrent layer"),
    ],
)
def test_modules_that_cannot_be_masked_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        find_layout(module)
