"""The selection's kernels, on every device, against a stable sort."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peermask.masks.select import top_fraction_by_layer_triton, top_fraction_by_sort


def agrees(device: torch.device, magnitude: Tensor, keep: Tensor, sizes: tuple[int, ...]) -> None:
    mask = top_fraction_by_layer_triton(magnitude.to(device), keep.to(device), sizes).cpu()
    for layer, (part, chosen) in enumerate(zip(magnitude.cpu().split(sizes, 1), mask.split(sizes, 1), strict=True)):
        assert torch.equal(chosen, top_fraction_by_sort(part, keep[:, layer]))


@pytest.mark.parametrize("kind", ["floats", "few values", "zeros", "huge and tiny"])
def test_it_is_a_stable_sort(device: torch.device, kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (100, 60_000 if device.type == "cpu" else 300_000, 9_000, 37, 1)
    magnitude = torch.rand(3, sum(sizes), generator=generator)
    if kind == "few values":
        magnitude = (8 * magnitude).floor()
    elif kind == "zeros":
        magnitude = magnitude * (magnitude > 0.9)
    elif kind == "huge and tiny":
        magnitude = torch.exp(160 * magnitude - 80)
    keep = torch.stack([torch.randint(1, size + 1, (3,), generator=generator) for size in sizes], dim=1)
    agrees(device, magnitude, keep, sizes)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999, 1.0])
def test_every_share_may_be_kept(device: torch.device, share: float) -> None:
    magnitude = torch.rand(2, 50_000, generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([[max(1, round(50_000 * share))], [1]])
    agrees(device, magnitude, keep, (50_000,))


def test_it_is_exact_where_a_sample_misleads(device: torch.device) -> None:
    magnitude = torch.arange(81_920.0).repeat(2, 1)
    magnitude[:, ::10] = 1e9  # just where the sample looks
    agrees(device, magnitude, torch.tensor([[500], [60_000]]), (81_920,))


@pytest.mark.parametrize("size", [120_000, 300_000])  # what ties fits into the room for it, or does not
def test_more_may_tie_than_a_program_holds(device: torch.device, size: int) -> None:
    keep = torch.tensor([[size // 3], [2 * size // 3]])
    if device.type == "cpu":  # interpreted, a row of the larger size takes half a minute
        keep = keep[:1]
    magnitude = (torch.rand(len(keep), size, generator=torch.Generator().manual_seed(4)) > 0.5).float()
    agrees(device, magnitude, keep, (size,))


@pytest.mark.usefixtures("interpreted")
def test_a_bracket_holds_the_threshold_of_filters_with_one_large_tap() -> None:
    from peermask.kernels.select_triton import bracket_kernel

    size = 409_600  # of which 16,384 at even distances would all be the same tap
    magnitude = torch.rand(1, size, generator=torch.Generator().manual_seed(5))
    magnitude[:, ::25] += 1
    for keep in (5_000, 122_880, 400_000):
        low, high = torch.zeros(2, 1, dtype=torch.int32)
        spans, counter = torch.tensor([[0, size]], dtype=torch.int32), torch.ones(1, dtype=torch.int64)
        bracket_kernel[(1, 1)](magnitude, spans, torch.tensor([[keep]]), low, high, counter, size, 1, 5.0, 16_384, 11)
        bits = magnitude.view(torch.int32)
        assert int(low) <= int(bits.sort(descending=True).values[0, keep - 1]) <= int(high)
        assert int(((bits >= low) & (bits <= high)).sum()) < 0.1 * size


def test_rows_may_lie_apart(device: torch.device) -> None:
    magnitude = torch.rand(3, 30_000, generator=torch.Generator().manual_seed(2)).to(device)[:, :20_000]
    agrees(device, magnitude, torch.tensor([[7], [700], [19_000]]), (20_000,))


def test_columns_may_lie_apart(device: torch.device) -> None:
    magnitude = torch.rand(9_000, 2, generator=torch.Generator().manual_seed(3)).to(device).T
    agrees(device, magnitude, torch.tensor([[7], [700]]), (9_000,))
