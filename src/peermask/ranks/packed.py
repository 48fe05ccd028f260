"""Messages as bytes between ranks: masks eight weights to a byte, real values unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

# All that a state or message is made of; ranks name a type by its place here
DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
PLACES = (128, 64, 32, 16, 8, 4, 2, 1)  # of a byte's bits, the first weight at the top


def pack(rows: Tensor) -> Tensor:
    """[R, ...] -> its bytes [R, bytes a row] uint8, where it lies."""
    flat = rows.reshape(len(rows), -1)
    if flat.dtype != torch.bool:
        return flat.contiguous().view(torch.uint8)
    if flat.device.type == "cpu":
        return torch.from_numpy(np.packbits(flat.numpy(), axis=1))
    return pack_bits(flat)


def unpack(packed: Tensor, out: Tensor) -> None:
    """The inverse: what `pack` gave, written into rows [R, ...] of the type and shape they had."""
    flat = out.view(len(out), -1)
    if flat.dtype != torch.bool:
        flat.copy_(packed.reshape(-1).view(flat.dtype).view_as(flat))
    elif flat.device.type == "cpu":
        flat.copy_(torch.from_numpy(np.unpackbits(packed.numpy(), axis=1, count=flat.shape[1])))
    else:
        flat.copy_(unpack_bits(packed, flat.shape[1]))


def pack_bits(masks: Tensor) -> Tensor:
    """[R, P] bool -> [R, ceil(P / 8)] uint8 on any device; numpy does the same faster on a CPU."""
    padded = torch.nn.functional.pad(masks.view(torch.uint8), (0, -masks.shape[1] % 8))
    places = torch.tensor(PLACES, dtype=torch.uint8, device=masks.device)
    return (padded.view(len(masks), -1, 8) * places).sum(2, dtype=torch.uint8)


def unpack_bits(packed: Tensor, width: int) -> Tensor:
    """[R, ceil(P / 8)] uint8 -> [R, P] bool."""
    places = torch.tensor(PLACES, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(2) & places).view(len(packed), -1)[:, :width].bool()


def packed_width(rows: Tensor) -> int:
    """Bytes a row."""
    width = prod(rows.shape[1:])
    return -(-width // 8) if rows.dtype == torch.bool else width * rows.element_size()


def pack_payload(payload: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Some rows of all leaves as one string of bytes, leaf after leaf."""
    return torch.cat([pack(leaf[rows]).flatten() for leaf in _aligned(payload)])


def unpack_payload(packed: Tensor, out: Mapping[str, Tensor], rows: slice) -> None:
    """The inverse, into rows of a payload that has room for them."""
    start = 0
    for leaf in _aligned(out):
        part = leaf[rows]
        size = len(part) * packed_width(part)
        unpack(packed[start : start + size].view(len(part), -1), part)
        start += size


def payload_width(payload: Mapping[str, Tensor]) -> int:
    """Bytes that one agent's message takes."""
    return sum(packed_width(leaf) for leaf in payload.values())


def _aligned(payload: Mapping[str, Tensor]) -> list[Tensor]:
    """The widest values first: behind a mask of an odd number of bytes they could not be read where they lie."""
    return sorted(payload.values(), key=lambda leaf: -leaf.element_size())
