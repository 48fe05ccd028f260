"""The aggregation tensor's kernels, on every device, against their reference implementation on a CPU."""

from __future__ import annotations

import pytest
import torch

from peermask.masks.aggregation import (
    add_own_votes,
    add_own_votes_triton,
    aggregated_magnitude,
    aggregated_magnitude_triton,
    pull_scores,
    pull_scores_triton,
)
from peermask.models.layout import Layer, Layout

ALEXNET = pytest.param((4800, 204800, 819200, 196608, 1920), marks=pytest.mark.large)


def layout_of(sizes: tuple[int, ...]) -> Layout:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    layers = zip(sizes, starts, strict=True)
    return Layout(tuple(Layer(f"{start}", "conv", (size, 1), start, 1) for size, start in layers), ())


@pytest.mark.parametrize("sizes", [(37,), (1, 37), (4096, 4097, 5), (20_000, 37), (16, 12_288, 5_008), ALEXNET])
@pytest.mark.parametrize("gain", [1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_the_magnitude_equals_its_reference(
    device: torch.device, sizes: tuple[int, ...], gain: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, sum(sizes), generator=generator)
    scores[1, ::7] = 0.0
    votes, voters = torch.randint(0, 5, scores.shape, generator=generator).to(dtype), torch.tensor([4, 0, 3])
    reference = aggregated_magnitude(scores, votes, voters, gain, layout_of(sizes))
    magnitude = aggregated_magnitude_triton(scores.to(device), votes.to(device), voters.to(device), gain, sizes).cpu()
    torch.testing.assert_close(magnitude, reference, rtol=1e-5, atol=1e-7)
    assert bool((magnitude[1, ::7] == 0).all())


@pytest.mark.parametrize("sizes", [(37,), (1, 37), (4096, 4097, 5), (16, 12_288, 5_008), ALEXNET])
@pytest.mark.parametrize(("dtype", "gain"), [(torch.uint8, 0.3), (torch.int32, torch.tensor([0.3, 0.2, 0.1]))])
def test_the_pull_equals_its_reference(
    device: torch.device, sizes: tuple[int, ...], dtype: torch.dtype, gain: float | torch.Tensor
) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, sum(sizes), generator=generator)
    scores[1, ::7] = 0.0
    votes, voters = torch.randint(0, 4, scores.shape, generator=generator).to(dtype), torch.tensor([4, 0, 3])
    mask = torch.rand(scores.shape, generator=generator) < 0.4
    reference = pull_scores(scores, votes, voters, mask, gain, layout_of(sizes))
    gain = gain.to(device) if isinstance(gain, torch.Tensor) else gain
    there, votes, voters, mask = (one.to(device) for one in (scores, votes, voters, mask))
    moved = pull_scores_triton(there, votes, voters, mask, gain, sizes).cpu()
    torch.testing.assert_close(moved, reference, rtol=1e-5, atol=1e-6)
    assert torch.equal(moved[1], scores[1])  # nobody heard


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("width", [37, 5000])
def test_own_votes_equal_their_reference(device: torch.device, dtype: torch.dtype, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    votes, own = torch.randint(0, 20, (3, width), generator=generator).to(dtype), torch.tensor([5, 0, 2])
    mask = torch.rand(3, width, generator=generator) < 0.4
    there = add_own_votes_triton(votes.to(device), own.to(device), mask.to(device)).cpu()
    assert torch.equal(there, add_own_votes(votes, own, mask))
    assert torch.equal(there, votes + (own[:, None] * mask).to(dtype))


def test_a_chunk_of_agents_is_computed_as_all_are(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(4, 9000, generator=generator).to(device)
    votes = torch.ones(4, 9000, dtype=torch.uint8, device=device)
    voters = torch.ones(4, dtype=torch.int64, device=device)
    every = aggregated_magnitude_triton(scores, votes, voters, 1.0, (8000, 1000))
    for rows in (slice(0, 1), slice(1, 4)):
        part = aggregated_magnitude_triton(scores[rows], votes[rows], voters[rows], 1.0, (8000, 1000))
        assert torch.equal(part, every[rows])


@pytest.mark.usefixtures("interpreted")
def test_more_blocks_than_are_added_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peermask.masks.aggregation.SUMS", 2)
    sizes = (30_000, 10)
    scores = torch.randn(2, sum(sizes), generator=torch.Generator().manual_seed(2))
    votes, voters = torch.ones(2, sum(sizes), dtype=torch.uint8), torch.tensor([1, 2])
    reference = aggregated_magnitude(scores, votes, voters, 1.0, layout_of(sizes))
    torch.testing.assert_close(aggregated_magnitude_triton(scores, votes, voters, 1.0, sizes), reference)
