"""The norm in blocks against its definition."""

from __future__ import annotations

import pytest
import torch

from peermask.compute.response_norm import ENTRIES, MOST_ADDED, response_norm
from peermask.models.architectures import LocalResponseNorm


def test_it_is_the_equation_worked_by_hand() -> None:
    x = torch.tensor([2.0, 0.0, 0.0, 0.0, 1.0]).view(1, 5, 1, 1)
    # Windows c-2 .. c+1 with α / size = 1: u = 1 + (4, 4, 4, 1, 1)
    expected = torch.tensor([2 * 5**-0.75, 0, 0, 0, 2**-0.75])
    assert torch.allclose(response_norm(x, 4, 4.0).flatten(), expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("channels_last", [True, False])
def test_it_equals_its_reference(size: int, channels_last: bool) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = (2 * torch.randn(3, 16, 5, 7)).contiguous(memory_format=layout).requires_grad_()
    sent = torch.randn_like(x)
    results = []
    for norm in (lambda x: response_norm(x, size, 0.3), LocalResponseNorm(size, 0.3)):
        y = norm(x)
        results.append((y.detach(), torch.autograd.grad(y, x, sent)[0]))
    for own, reference in zip(*results, strict=True):
        assert (own - reference).norm() < 1e-6 * reference.norm()


def test_its_gradient_is_that_of_what_it_computes() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: response_norm(x, 4, 0.7), x)


def test_images_are_computed_alike_in_one_block_or_many() -> None:
    torch.manual_seed(0)
    x = torch.randn(1 + 2 * ENTRIES // (64 * 49), 64, 7, 7).contiguous(memory_format=torch.channels_last)
    whole = response_norm(x, 4, 0.1)
    assert torch.allclose(whole[:3], response_norm(x[:3], 4, 0.1), rtol=1e-6)


def test_a_number_that_is_none_stays_one() -> None:
    x = torch.zeros(1, 8, 2, 2)
    x[0, 3, 0, 0] = float("nan")
    assert response_norm(x, 4, 0.1).isnan().any()
    assert not response_norm(x, 4, 0.1)[..., 1, 1].isnan().any()


def test_many_channels_go_through_a_product_of_matrices() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, MOST_ADDED + 8, 3, 3, requires_grad=True)
    sent = torch.randn_like(x)
    own, reference = response_norm(x, 4, 0.3), LocalResponseNorm(4, 0.3)(x)
    assert torch.allclose(own, reference, atol=1e-6)
    found, wanted = (torch.autograd.grad(y, x, sent)[0] for y in (own, reference))
    assert torch.allclose(found, wanted, atol=1e-6)
