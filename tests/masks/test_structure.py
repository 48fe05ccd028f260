"""Fil and the group lasso, worked by hand on a layer of two filters with three weights each."""

from __future__ import annotations

import math

import pytest
import torch

from peermask.masks.scores import filter_rule, group_lasso_gradient
from peermask.models.layout import Layer, Layout

LAYER = Layer("conv", "conv", (2, 3), 0, 3)
MASK = torch.tensor([[True, False, False, True, True, False]])


def test_fil_off_changes_nothing() -> None:
    assert filter_rule(MASK, LAYER, 0).equal(MASK)


def test_fil_empties_filters_with_no_more_than_the_threshold() -> None:
    assert filter_rule(MASK, LAYER, 1).tolist() == [[False, False, False, True, True, False]]
    assert filter_rule(MASK, LAYER, 2).tolist() == [[False] * 6]


def test_fil_below_one_is_a_share_of_the_filter() -> None:
    # 0.5 of 3 entries is 1.5: one entry is too few, two are enough.
    assert filter_rule(MASK, LAYER, 0.5).tolist() == [[False, False, False, True, True, False]]


def test_group_lasso_gradient_is_the_direction_of_each_filter() -> None:
    scores = torch.tensor([[3.0, 4.0, 0.0, 0.0, 0.0, 0.0]])
    gradient = group_lasso_gradient(scores, Layout((LAYER,), ()))
    assert gradient[0].tolist() == pytest.approx([0.6, 0.8, 0.0, 0.0, 0.0, 0.0])


def test_group_lasso_gradient_agrees_with_autograd() -> None:
    scores = torch.tensor([[0.3, -0.2, 0.5, 1.0, -1.0, 0.1]], requires_grad=True)
    scores.view(2, 3).norm(dim=1).sum().backward()  # the sum of filter norms
    assert scores.grad is not None
    assert torch.allclose(scores.grad, group_lasso_gradient(scores.detach(), Layout((LAYER,), ())))
    assert math.isfinite(float(scores.grad.sum()))
