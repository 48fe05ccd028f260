"""A module made ready for one agent on a CPU computes what it did before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from peermask.compute.cpu_module import (
    BlockedResponseNorm,
    CpuModule,
    SlicedPointwiseConv2d,
    WinogradConv2d,
    channels_last,
    optimise_for_cpu,
    use_blocked_norms,
    use_winograd,
)
from peermask.compute.winograd import winograd_pays
from peermask.models.architectures import LocalResponseNorm, alexnet, cnn


def test_a_network_with_fewer_products_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    # Means in place of maxima, and ELU in place of ReLU: where rounding decides, gradients may go either way.
    smooth = {nn.MaxPool2d: nn.AvgPool2d(2), nn.ReLU: nn.ELU()}
    plain = nn.Sequential(*(smooth.get(type(m), m) for m in cnn((1, 28, 28), 10).children()))
    ready = optimise_for_cpu(copy.deepcopy(plain))
    assert [name for name, _ in ready.named_parameters()] == [name for name, _ in plain.named_parameters()]
    seen: list[bool] = []
    ready[3].register_forward_pre_hook(lambda conv, args: seen.append(winograd_pays(args[0], conv.weight, (2, 2))))  # type: ignore[index]
    images = torch.randn(64, 1, 28, 28)
    for module, x in ((plain, images), (ready, channels_last(images))):
        nn.functional.cross_entropy(module(x), torch.arange(64) % 10).backward()
    assert seen == [True]
    for one, other in zip(ready.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad - other.grad).norm() < 5e-5 * other.grad.norm()  # 2e-5 of one convolution, and before it


def test_a_flattening_keeps_its_gradients_layout() -> None:
    gradients: list[torch.Tensor] = []
    back = torch.randn(3, 120)
    for flatten in (nn.Flatten(), optimise_for_cpu(nn.Flatten())):
        x = channels_last(torch.randn(3, 4, 5, 6)).requires_grad_()
        y = x.relu()
        flat = flatten(y)
        y.register_hook(gradients.append)
        torch.autograd.grad(flat, x, back)
    plain, fast = gradients
    assert torch.equal(plain, fast)
    assert fast.is_contiguous(memory_format=torch.channels_last)


def test_a_copy_is_called_with_the_parameters_it_is_given() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 2))
    before = copy.deepcopy(plain.state_dict())
    alone, images = CpuModule(plain), torch.randn(5, 2, 3)
    for _ in range(2):
        given = {name: torch.randn_like(tensor) for name, tensor in plain.named_parameters()}
        assert torch.equal(alone(given, images), functional_call(plain, given, (images,)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items())


def test_a_copys_gradients_are_those_of_the_given_parameters() -> None:
    module = nn.GRU(3, 2, batch_first=True)  # which keeps a list of its parameters
    alone = CpuModule(_Last(module))
    leaves = {name: torch.randn_like(tensor).requires_grad_() for name, tensor in alone.module.named_parameters()}
    gradients = torch.autograd.grad(alone(leaves, torch.randn(4, 5, 3)).sum(), list(leaves.values()))
    assert all(gradient.any() for gradient in gradients)


class _Last(nn.Module):
    def __init__(self, recurrent: nn.GRU) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.recurrent(x)[0]
        return states[:, -1]


@pytest.mark.parametrize("inputs", [3, 4, 8])
def test_a_strided_pointwise_convolution_is_torchs(inputs: int) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(inputs, 8, 1, stride=2, bias=False)
    ready = optimise_for_cpu(copy.deepcopy(plain))
    assert type(ready) is SlicedPointwiseConv2d
    images = torch.randn(5, inputs, 9, 9)
    assert torch.allclose(ready(channels_last(images)), plain(images), atol=1e-6)


def test_only_plain_convolutions_are_replaced() -> None:
    class Own(nn.Conv2d):
        pass

    others = [
        nn.Conv2d(4, 4, 5, stride=2),
        nn.Conv2d(4, 4, 5, dilation=2),
        nn.Conv2d(4, 4, 5, groups=2),
        nn.Conv2d(4, 4, 5, padding="same"),
        nn.Conv2d(4, 4, 5, padding=2, padding_mode="reflect"),
        Own(4, 4, 5),
    ]
    module = nn.Sequential(nn.Conv2d(4, 4, 5), *others)
    kinds = [type(child) for child in others]
    use_winograd(module)
    assert [type(child) for child in module] == [WinogradConv2d, *kinds]


def test_the_papers_network_in_fewer_passes_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    plain = alexnet((3, 32, 32), 10)
    ready = optimise_for_cpu(copy.deepcopy(plain))
    assert sum(type(layer) is BlockedResponseNorm for layer in ready.modules()) == 3
    images = torch.randn(4, 3, 32, 32)
    for module, x in ((plain, images), (ready, channels_last(images))):
        nn.functional.cross_entropy(module(x), torch.arange(4)).backward()
    for one, other in zip(ready.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad - other.grad).norm() < 1e-4 * other.grad.norm()


def test_only_the_norm_that_two_roots_make_is_replaced() -> None:
    module = nn.Sequential(LocalResponseNorm(4, 0.1), LocalResponseNorm(4, 0.1, beta=0.5))
    use_blocked_norms(module)
    assert [type(child) for child in module] == [BlockedResponseNorm, LocalResponseNorm]
