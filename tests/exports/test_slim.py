"""Dead filters are cut out, and the network stays the same function."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from peermask.exports.slim import NotSlimmable, count_multiply_adds, count_parameters, slim
from peermask.models.architectures import LocalResponseNorm, models


def random_images(shape: tuple[int, int, int], count: int = 3) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def drawn(module: nn.Module, seed: int, share: float) -> nn.Module:
    """Weights and biases from a seed, and that share of every layer's filters emptied."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in module.requires_grad_(False).parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.weight[torch.rand(len(layer.weight), generator=draw) < share] = 0
    return module.eval()


def test_what_is_removed_can_be_counted_by_hand() -> None:
    """3 of 4 filters of the first layer die, and with them the inputs of the second."""
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 3, bias=False), nn.Flatten(), nn.Linear(2, 2)
    )
    drawn(module, 0, 0.0)
    module[0].weight[1:] = 0  # type: ignore[operator, index]
    cut = slim(module, (1, 5, 5))
    assert cut.removed == {"0": 3}
    assert count_parameters(module) - count_parameters(cut.module) == 3 * 9 + 3 * 2 * 9
    assert count_multiply_adds(module, torch.zeros(1, 1, 5, 5)) == 9 * 4 * 9 + 2 * 4 * 9 + 4
    assert count_multiply_adds(cut.module, torch.zeros(1, 1, 5, 5)) == 9 * 1 * 9 + 2 * 1 * 9 + 4


@pytest.mark.parametrize(("name", "shape"), [("alexnet", (3, 32, 32)), ("cnn", (1, 8, 8)), ("mlp", (1, 8, 8))])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_networks_that_ship_stay_the_same_function(name: str, shape: tuple[int, int, int], share: float) -> None:
    module = drawn(models[name].make(shape, 10), 3, share)
    cut = slim(module, shape)
    torch.testing.assert_close(cut.module(random_images(shape)), module(random_images(shape)), atol=1e-4, rtol=1e-4)
    assert bool(cut.removed) == (share > 0)


@given(
    seed=st.integers(0, 1000),
    padding=st.integers(0, 1),
    bias=st.booleans(),
    norm=st.booleans(),
    pool=st.sampled_from("map"),
)
def test_any_chain_stays_the_same_function(seed: int, padding: int, bias: bool, norm: bool, pool: str) -> None:
    pools = {"m": nn.MaxPool2d(3, 2, 1), "a": nn.AvgPool2d(2, padding=padding), "p": nn.AdaptiveAvgPool2d(2)}
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 6, 3, padding=1, bias=bias), nn.Sigmoid() if seed % 2 else nn.ELU()),
        *([LocalResponseNorm(4, 0.1)] if norm else []),
        pools[pool],
        nn.Conv2d(6, 5, 2, padding=padding, bias=bias),
        nn.LeakyReLU(),
        nn.Flatten(),
        nn.LazyLinear(7, bias=bias),
        nn.Tanh(),
        nn.Linear(7, 3),
    )
    images = random_images((2, 6, 6))
    module(images)  # gives the lazy layer its size
    drawn(module, seed, 0.5)
    torch.testing.assert_close(slim(module, (2, 6, 6)).module(images), module(images), atol=1e-5, rtol=1e-4)


def test_a_layer_whose_filters_are_all_dead_keeps_one() -> None:
    module = drawn(models["cnn"].make((1, 8, 8), 10), 0, 1.0)
    cut = slim(module, (1, 8, 8))
    torch.testing.assert_close(cut.module(random_images((1, 8, 8))), module(random_images((1, 8, 8))))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), "layer 1 is a GroupNorm"),
        (nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, groups=2))), r"layer 0\.1 is a Conv2d"),
        (models["resnet18"].make((1, 8, 8), 10, width=4), "layer 1 is a GroupNorm"),
        (nn.Linear(2, 2), "the whole model"),
    ],
)
def test_what_cannot_be_followed_is_named(module: nn.Module, message: str) -> None:
    with pytest.raises(NotSlimmable, match=message):
        slim(module, (1, 8, 8))


def test_multiply_adds_of_recurrent_layers_by_hand() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 4, num_layers=2, batch_first=True, bidirectional=True)
            self.out = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(self.gru(x)[0][:, -1])
            return out

    first, second = (
        3 * 4 * (3 + 4),
        3 * 4 * (8 + 4),
    )  # three gates of four units; the second layer reads both directions
    assert count_multiply_adds(Last(), torch.zeros(5, 6, 3)) == 6 * 2 * (first + second) + 8 * 2
