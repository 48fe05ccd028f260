"""Gradients of agents stacked and alone, and the paper's network against torch's own layers."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from peermask.compute.cpu_module import pool_first
from peermask.compute.network import Batch, Network, blank, build_network
from peermask.compute.stacked import StackedChain
from peermask.compute.traced import TracedStack
from peermask.errors import ModelError
from peermask.models.architectures import LocalResponseNorm, alexnet, cnn, mlp, models, resnet18


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative distance in norm: single entries may differ where two maxima of a pool are equal but for rounding."""
    return float((a - b).norm() / b.norm())


def random_params(network: Network, agents: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.1 * torch.randn(agents, network.layout.total, generator=generator)


def test_local_response_norm_is_torchs() -> None:
    x = 30 * torch.randn(2, 9, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(LocalResponseNorm(4, 1e-4)(x), nn.LocalResponseNorm(4, 1e-4)(x), rtol=1e-5)


def test_alexnet_has_the_papers_shapes() -> None:
    module = alexnet((3, 32, 32), 10)
    sides = []
    x = torch.zeros(1, 3, 32, 32)
    for layer in module.children():
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sides.append(x.shape[-1])
    assert sides == [30, 14, 12, 5, 3, 2]
    assert x.shape == (1, 10)


@pytest.mark.parametrize("make", [cnn, mlp, lambda shape, classes: resnet18(shape, classes, width=4)])
def test_a_stack_of_agents_has_the_gradients_of_each_alone(make) -> None:  # type: ignore[no-untyped-def]
    network = build_network(make((1, 8, 8), 10), (1, 8, 8), 10)
    generator = torch.Generator().manual_seed(1)
    params = random_params(network, 3)
    batch = Batch(torch.randn(3, 5, 1, 8, 8, generator=generator), torch.randint(0, 10, (3, 5), generator=generator))
    stacked, losses = network.gradient(params, batch)
    for i in range(3):
        own = slice(i, i + 1)
        alone, loss = network.gradient(params[own], Batch(batch.inputs[own], batch.targets[own]))
        assert torch.allclose(alone[0], stacked[i], atol=1e-6)
        assert torch.allclose(loss[0], losses[i])


@pytest.mark.parametrize("make", [alexnet, cnn, mlp])
def test_the_stacked_path_is_the_general_one(make) -> None:  # type: ignore[no-untyped-def]
    """The chain of fused blocks, by its eager reference implementation, against the module vectorised as it is."""
    shape = (3, 32, 32)
    network = build_network(make(shape, 10), shape, 10)
    assert network.stack is not None
    general = replace(network, stack=None)
    generator = torch.Generator().manual_seed(1)
    params = random_params(network, 2)
    batch = Batch(
        torch.randn(2, 4, *shape, generator=generator),
        torch.randint(0, 10, (2, 4), generator=generator),
        torch.tensor([[1.0] * 4, [1.0, 1.0, 1.0, 0.0]]),
    )
    for fused, plain in zip(network.gradient(params, batch), general.gradient(params, batch), strict=True):
        assert apart(fused, plain) < 1e-4
    assert apart(network.outputs(params, batch.inputs), general.outputs(params, batch.inputs)) < 1e-4


def test_a_module_that_is_no_chain_is_traced() -> None:
    strided = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 10))
    for module in (resnet18((1, 8, 8), 10, width=4), strided):
        assert isinstance(build_network(module, (1, 8, 8), 10).stack, TracedStack)


@pytest.mark.parametrize(
    "block",
    [
        [nn.Conv2d(1, 4, 3), nn.ReLU()],
        [nn.Conv2d(1, 4, 3, padding="same"), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d((2, 3))],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), LocalResponseNorm(2, 1.0), nn.MaxPool2d(2)],
    ],
)
def test_a_block_of_another_form_is_computed_as_it_is(block: list[nn.Module]) -> None:
    torch.manual_seed(0)
    size = nn.Sequential(*block, nn.Flatten())(torch.zeros(1, 1, 8, 8)).shape[1]
    module = nn.Sequential(*block, nn.Flatten(), nn.Linear(size, 10))
    assert not isinstance(build_network(module, (1, 8, 8), 10).stack, StackedChain)
    stacked, general = both_paths(module)
    assert torch.allclose(stacked, general, atol=1e-5)


def both_paths(module: nn.Module) -> list[torch.Tensor]:
    """Logits of two agents by the stack, if there is one, and by the general path."""
    network = build_network(module, (1, 8, 8), 10)
    params, images = random_params(network, 2), torch.randn(2, 3, 1, 8, 8)
    return [n.outputs(params, images) for n in (network, replace(network, stack=None))]


def test_an_activation_that_stands_in_two_places_is_applied_in_both() -> None:
    same = nn.ReLU()
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), same, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 20), same, nn.Linear(20, 10)
    )
    assert build_network(module, (1, 8, 8), 10).stack is not None
    stacked, general = both_paths(module)
    assert torch.allclose(stacked, general, atol=1e-5)


def test_a_layer_used_twice_has_the_gradients_of_both() -> None:
    same = nn.Linear(64, 64)
    module = nn.Sequential(nn.Flatten(), same, nn.ReLU(), same, nn.Linear(64, 10))
    assert isinstance(build_network(module, (1, 8, 8), 10).stack, TracedStack)
    traced, general = both_paths(module)
    assert torch.allclose(traced, general, atol=1e-5)


def test_a_subclass_that_may_compute_something_else_is_no_chain() -> None:
    class Doubled(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * super().forward(x)  # type: ignore[no-any-return]

    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * super().forward(x)

    for module in (Doubled(nn.Flatten(), nn.Linear(64, 10)), nn.Sequential(nn.Flatten(), Scaled(64, 10))):
        assert not isinstance(build_network(module, (1, 8, 8), 10).stack, StackedChain)
        stacked, general = both_paths(module)
        assert torch.allclose(stacked, general, atol=1e-5)


def test_the_gradient_is_that_of_a_plain_module() -> None:
    module = mlp((1, 8, 8), 10, hidden=(6,))
    network = build_network(mlp((1, 8, 8), 10, hidden=(6,)), (1, 8, 8), 10)
    own = dict(module.named_parameters())
    params = torch.cat([own[layer.name].detach().flatten() for layer in network.layout.layers])[None]
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    F.cross_entropy(module(images), labels).backward()
    gradient, _ = network.gradient(params, Batch(images[None], labels[None]))
    expected = torch.cat([own[layer.name].grad.flatten() for layer in network.layout.layers])  # type: ignore[union-attr]
    assert torch.allclose(gradient[0], expected, atol=1e-6)


@pytest.mark.parametrize(("activation", "last_place"), [(nn.ReLU(), 0.0), (nn.ELU(), 1e-6)])
def test_pooling_first_gives_the_same_numbers(activation: nn.Module, last_place: float) -> None:
    """ReLU to the bit; torch's ELU rounds the last few entries of a tensor differently from the others."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), activation, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    swapped = pool_first(copy.deepcopy(plain))
    assert isinstance(swapped[1], nn.MaxPool2d)  # type: ignore[index]
    assert dict(swapped.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    x = torch.randn(5, 2, 8, 8)
    for module in (plain, swapped):
        module(x).square().sum().backward()
    assert apart(swapped(x).detach(), plain(x).detach()) <= last_place
    for one, other in zip(swapped.parameters(), plain.parameters(), strict=True):
        assert apart(one.grad, other.grad) <= last_place  # type: ignore[arg-type]


def test_padding_counts_for_nothing() -> None:
    network = build_network(cnn((1, 8, 8), 10), (1, 8, 8), 10)
    params = random_params(network, 2)
    images, labels = torch.randn(2, 6, 1, 8, 8), torch.randint(0, 10, (2, 6))
    valid = torch.tensor([[1.0] * 6, [1.0] * 4 + [0.0] * 2])
    stacked, losses = network.gradient(params, Batch(images, labels, valid))
    alone, loss = network.gradient(params[1:], Batch(images[1:, :4], labels[1:, :4]))
    assert torch.allclose(stacked[1], alone[0], atol=1e-6)
    assert torch.allclose(losses[1], loss[0])


def test_a_model_that_does_not_fit_the_images_is_refused() -> None:
    with pytest.raises(ModelError, match="does not fit images of shape 3x8x8"):
        build_network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)), (3, 8, 8), 10)


def test_a_model_with_other_classes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"gives 7 outputs .* the data has 10 classes"):
        build_network(mlp((1, 8, 8), 7), (1, 8, 8), 10)


def test_every_model_that_ships_runs() -> None:
    shapes = {"cnn1d": (3, 40), "text": (12,)}
    options = {"resnet18": {"width": 8}, "text": {"vocabulary": 50}}
    for entry in models:
        shape = shapes.get(entry.name, (3, 32, 32))
        inputs = blank(shape, tokens=entry.name == "text", count=2)
        assert entry.make(shape, 10, **options.get(entry.name, {}))(inputs).shape == (2, 10)
    assert models["mlp"].make((7,), 10)(torch.zeros(2, 7)).shape == (2, 10)


@pytest.mark.parametrize(("name", "shape"), [("cnn", (7,)), ("cnn1d", (1, 8, 8)), ("text", (3, 4)), ("text", (4,))])
def test_a_model_for_other_inputs_says_so(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="it takes"):
        models[name].make(shape, 10)
