"""What every message costs on a link, counted the honest way and the ways papers count.

All agents send the same message over each of their links, so a cost is per directed link, and an agent's total is
its cost times its links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from peermask.algorithms.contract import Payload

HEADER = 64  # bytes of framing around a plain bitmap: who, which round, which run, layer table, checksum


@dataclass(frozen=True)
class Cost:
    """One message of each of N agents, per directed link."""

    paper_bits: Tensor  # [N] int64: 1 per mask bit, 32 per real value
    ones_bits: Tensor  # [N] int64: 1 per mask *one*, as the authors' code counts; cannot be decoded
    bitmap_bytes: Tensor  # [N] int64: a bitmap or float32 values, with a header
    entropy_bytes: Tensor  # [N] float64: no code for a mask of this density can do better

    def to(self, device: torch.device) -> Cost:
        return Cost(*(getattr(self, field.name).to(device) for field in fields(self)))


def message_cost(payload: Payload, sizes: Sequence[int]) -> Cost | None:
    """The cost of one round's messages; None for an algorithm that sends nothing."""
    if not payload:
        return None
    leaves = list(payload.values())
    agents, device = len(leaves[0]), leaves[0].device
    ones = torch.zeros(agents, dtype=torch.int64, device=device)
    entropy = torch.zeros(agents, dtype=torch.float64, device=device)
    paper = bitmap = 0
    for leaf in leaves:
        width = leaf[0].numel()
        if leaf.dtype == torch.bool:
            by_layer = _ones_by_layer(leaf, sizes)  # [N, L]
            ones += by_layer.sum(1)
            entropy += _entropy_bits(by_layer, sizes) / 8
            paper += width
            bitmap += (width + 7) // 8
        else:
            ones += 32 * leaf.ne(0).flatten(1).sum(1)
            entropy += 4 * width
            paper += 32 * width
            bitmap += 4 * width
    return Cost(
        torch.full((agents,), paper, device=device),
        ones,
        torch.full((agents,), HEADER + bitmap, device=device),
        entropy,
    )


def _ones_by_layer(mask: Tensor, sizes: Sequence[int]) -> Tensor:
    return torch.stack([part.sum(1) for part in mask.split(list(sizes), dim=1)], dim=1)  # [N, P_w] -> [N, L]


def _entropy_bits(ones: Tensor, sizes: Sequence[int]) -> Tensor:
    """Σ_l n_l H2(k_l / n_l)."""
    total = torch.tensor(sizes, dtype=torch.float64, device=ones.device)  # [L]
    p = ones.double() / total
    each = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)) / torch.log(
        torch.tensor(2.0, dtype=torch.float64)
    )
    return (each * total).sum(1)  # [N]
