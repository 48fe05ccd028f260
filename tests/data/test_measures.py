"""Metrics worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from peermask.compute.network import mean_loss
from peermask.data.measures import average_precision, confusion_of, f1, macro_f1, mae, r2
from peermask.models.outputs import absolute_error, binary_cross_entropy, huber, squared_error


def test_macro_f1_of_two_labels() -> None:
    # Labels 0 0 0 1, answers 0 0 1 1: of label 0 right 2, told 2, there 3; of label 1 right 1, told 2, there 1.
    confusion = confusion_of(tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), tensor([0, 0, 0, 1]), 3)
    assert confusion.tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    found = macro_f1(confusion.diagonal(), confusion.sum(0), confusion.sum(1))
    assert float(found) == pytest.approx((4 / 5 + 2 / 3) / 2)  # label 2 is neither told nor there


def test_f1_of_several_labels() -> None:
    outputs = tensor([[1.0, -1.0, -1.0], [1.0, 1.0, -1.0]])
    targets = tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert float(f1(outputs, targets)) == pytest.approx((2 / 3 + 1) / 2)
    assert math.isnan(float(f1(outputs[:, 2:], targets[:, 2:])))


def test_average_precision() -> None:
    # Ranked 0.9 (there), 0.8, 0.7 (there), 0.1: precisions 1 and 2/3.
    outputs = tensor([[0.7], [0.9], [0.8], [0.1]])
    targets = tensor([[1.0], [1.0], [0.0], [0.0]])
    assert float(average_precision(outputs, targets)) == pytest.approx((1 + 2 / 3) / 2)
    assert float(average_precision(torch.zeros(4, 1), targets)) == pytest.approx(0.5)  # a tie tells nothing
    assert math.isnan(float(average_precision(outputs, torch.zeros(4, 1))))


def test_r2_and_mae() -> None:
    targets, outputs = tensor([[1.0], [2.0], [3.0]]), tensor([[1.0], [2.0], [5.0]])
    assert float(r2(outputs, targets)) == pytest.approx(1 - 4 / 2)
    assert float(mae(outputs, targets)) == pytest.approx(2 / 3)
    assert math.isnan(float(r2(outputs, torch.ones(3, 1))))
    both = torch.cat([targets, torch.ones(3, 1)], 1)
    assert float(r2(both, both)) == 1.0  # of the output that varies


def test_losses() -> None:
    outputs, targets = tensor([[0.0, 2.0]]), tensor([[1.0, 0.0]])
    expected = (math.log(2) + math.log(1 + math.exp(2))) / 2
    assert float(binary_cross_entropy(outputs, targets)) == pytest.approx(expected)
    assert float(squared_error(outputs, targets)) == pytest.approx((1 + 4) / 2)
    assert float(absolute_error(outputs, targets)) == pytest.approx((1 + 2) / 2)
    assert float(huber(outputs, targets)) == pytest.approx((0.5 + 1.5) / 2)
    valid = tensor([1.0, 0.0])
    assert float(mean_loss(squared_error, tensor([[1.0], [9.0]]), torch.zeros(2, 1), valid)) == 1.0
