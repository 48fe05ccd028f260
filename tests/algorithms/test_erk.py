"""Densities by the Erdős–Rényi-kernel rule."""

import pytest
import torch

from peermask.algorithms.dis_pfl import erk_counts, erk_densities
from peermask.models.architectures import alexnet
from peermask.models.layout import find_layout

ALEXNET = find_layout(alexnet((3, 32, 32), 10))


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (0.1, [1, 0.063, 0.031, 0.395, 1]),
        (0.2, [1, 0.130, 0.063, 0.814, 1]),
        (0.3, [1, 0.273, 0.133, 1, 1]),
        (0.4, [1, 0.476, 0.232, 1, 1]),
        (0.5, [1, 0.679, 0.331, 1, 1]),
    ],
)
def test_the_papers_network(retention: float, expected: list[float]) -> None:
    found = erk_densities([layer.shape for layer in ALEXNET.masked], retention)
    assert found == pytest.approx(expected, abs=1.1e-3)


def test_the_total_is_the_retention() -> None:
    counts = erk_counts(ALEXNET, [0.1, 0.3, 1.0])
    assert counts.sum(1).tolist() == pytest.approx([122_733, 368_198, 1_227_328], abs=3)
    assert bool((counts <= torch.tensor(ALEXNET.sizes)).all())
