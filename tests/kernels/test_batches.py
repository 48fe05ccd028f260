"""The kernel that gathers batches, on every device, against indexing and `Dataset.normalise`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peermask.data.dataset import Dataset, Split, gather_triton
from peermask.data.normalisation import Range


def drawn(shape: tuple[int, ...], peak: float, dtype: torch.dtype) -> Dataset:
    """Images with every pixel value there is, where the type has few."""
    generator = torch.Generator().manual_seed(0)
    count = max(9, -(-256 // torch.Size(shape).numel()))
    if dtype == torch.uint8:
        images = (torch.arange(count * torch.Size(shape).numel()) % 256).to(dtype).view(count, *shape)
    else:
        images = peak * torch.rand(count, *shape, generator=generator)
    split = Split(images, torch.randint(0, 10, (count,), generator=generator))
    return Dataset("drawn", split, split, tuple("0123456789"), Range(high=peak))


def agrees(device: torch.device, dataset: Dataset, index: Tensor) -> None:
    split = dataset.train
    inputs, targets = split.inputs.to(device), split.targets.to(device)
    images, labels = gather_triton(inputs, targets, index.to(device), dataset.normalisation.high)
    wanted, own = dataset.gather(split, index)
    assert images.shape == wanted.shape
    assert torch.equal(images.cpu(), wanted)  # to the bit
    assert torch.equal(labels.cpu(), own)
    assert images.permute(0, 1, 3, 4, 2).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("peak", [255.0, 16.0, 1.0, 0.3])
def test_every_pixel_equals_its_reference_to_the_bit(device: torch.device, peak: float, dtype: torch.dtype) -> None:
    dataset = drawn((3, 8, 8), peak, dtype)
    agrees(device, dataset, torch.arange(len(dataset.train)).view(3, -1))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 28, 28), (3, 32, 32), (2, 5, 7), (5, 19, 23)])
def test_images_of_any_shape(device: torch.device, shape: tuple[int, ...]) -> None:
    agrees(device, drawn(shape, 255.0, torch.uint8), torch.tensor([[0, 8, 3], [3, 3, 1]]))


def test_one_sample_of_one_agent(device: torch.device) -> None:
    agrees(device, drawn((3, 4, 4), 255.0, torch.uint8), torch.tensor([[7]]))


def test_an_index_may_lie_across(device: torch.device) -> None:
    agrees(device, drawn((3, 4, 4), 255.0, torch.uint8), torch.tensor([[0, 8], [3, 2], [5, 5]]).T)
