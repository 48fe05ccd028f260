"""The aggregation tensor on a CPU, by hand."""

from __future__ import annotations

import pytest
import torch

from peermask.masks.aggregation import aggregated_magnitude
from peermask.models.layout import Layer, Layout


def layout_of(*sizes: int) -> Layout:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    layers = zip(sizes, starts, strict=True)
    return Layout(tuple(Layer(f"{start}", "conv", (size, 1), start, 1) for size, start in layers), ())


def test_by_hand() -> None:
    """Two layers whose means are 2 and 1; two of four neighbours keep the first weight. A score of 0 has no sign."""
    scores, votes = torch.tensor([[1.0, -3.0, 0.0, 2.0]]), torch.tensor([[2, 4, 4, 0]])
    magnitude = aggregated_magnitude(scores, votes, torch.tensor([4]), 1.0, layout_of(2, 2))
    assert magnitude.tolist() == [[2.0, 5.0, 0.0, 2.0]]


@pytest.mark.parametrize("gain", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_is_the_magnitude_of_the_equation(gain: float, dtype: torch.dtype) -> None:
    """|z + mean|z| · sign(z) · n| in double precision: five roundings, and a mean whose sum has ten in turn at most."""
    generator, layout = torch.Generator().manual_seed(0), layout_of(800, 5_003, 17)
    scores = torch.randn(3, 5_820, generator=generator)
    scores[1, ::7] = 0.0
    votes, voters = torch.randint(0, 5, scores.shape, generator=generator).to(dtype), torch.tensor([4, 0, 3])
    z, heard = scores.double(), gain * votes.double() / voters.clamp(min=1)[:, None]
    parts = zip(z.split(layout.sizes, 1), heard.split(layout.sizes, 1), strict=True)
    exact = torch.cat([(own + own.abs().mean(1, keepdim=True) * own.sign() * n).abs() for own, n in parts], 1)
    found = aggregated_magnitude(scores, votes, voters, gain, layout)
    torch.testing.assert_close(found.double(), exact, rtol=16 * 2.0**-24, atol=0)


def test_scores_that_are_not_numbers_change_no_others() -> None:
    scores = torch.tensor([[1.0, float("nan"), 0.0, -2.0]])
    found = aggregated_magnitude(scores, torch.ones(1, 4).int(), torch.tensor([1]), 1.0, layout_of(2, 2))
    assert found.isnan().tolist() == [[True, True, False, False]]
    assert found[0, 2:].tolist() == [0.0, 3.0]


def test_votes_of_another_width_are_an_error() -> None:
    with pytest.raises(RuntimeError):
        aggregated_magnitude(torch.ones(1, 4), torch.ones(1, 3).int(), torch.tensor([1]), 1.0, layout_of(4))
