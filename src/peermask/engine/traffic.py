"""What every message costs on a link: what the codec really sends, and the ways papers count.

An agent sends the same message over each of its links, so a cost is per directed link. Every receiver holds the
sender's message of the round before, so what the codec sends is a delta against that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.algorithms.contract import Payload
from peermask.engine.round import Spread, in_turn
from peermask.errors import DivergedError, WireError
from peermask.wire import Schema, bitmap_size, frame_size
from peermask.wire.device_cost import count_ones, payload_frame_size_torch


@dataclass(frozen=True)
class Cost:
    """One message of each of N agents, per directed link."""

    paper_bits: Tensor  # [N]: 1 per mask bit, 32 per real value
    ones_bits: Tensor  # [N]: 1 per mask *one*, 32 per non-zero value, as the authors' code counts; not decodable
    bitmap_bytes: Tensor  # [N]: a bitmap, or float32 values, with framing
    entropy_bytes: Tensor  # [N]: no code for masks of this density can do better without knowing the one before
    coded_bytes: Tensor  # [N]: what the codec sends

    def columns(self) -> list[list[float]]:
        """On the CPU, in the order of the fields."""
        columns = (self.paper_bits, self.ones_bits, self.bitmap_bytes, self.entropy_bytes, self.coded_bytes)
        return [column.tolist() for column in columns]


COST_COLUMNS = ("paper_bits", "ones_bits", "bitmap_bytes", "entropy_bytes", "coded_bytes")


def message_cost(payload: Payload, before: Payload | None, sizes: Sequence[int], spread: Spread = in_turn) -> Cost:
    """The cost of one round's messages [N, ...]; `before` are those of the round before, where there was one."""
    leaves = list(payload.values())
    agents, device = len(leaves[0]), leaves[0].device
    ones = torch.zeros(agents, dtype=torch.int64, device=device)
    entropy = torch.zeros(agents, dtype=torch.float64, device=device)
    paper = 0
    for leaf in leaves:
        width = leaf[0].numel()
        if leaf.dtype == torch.bool:
            by_layer = count_ones(leaf, sizes)  # [N, L]
            ones += by_layer.sum(1)
            entropy += entropy_bits(by_layer, sizes) / 8
            paper += width
        else:
            kept = leaf.ne(0).flatten(1).sum(1)
            ones += 32 * kept
            entropy += 4 * kept + entropy_bits(kept[:, None], [width]) / 8
            paper += 32 * width
    bitmap = bitmap_size(schema_of(payload, sizes))
    return Cost(
        torch.full((agents,), paper, device=device),
        ones,
        torch.full((agents,), bitmap, device=device),
        entropy,
        coded_size(payload, before, sizes, spread),
    )


def coded_size(payload: Payload, before: Payload | None, sizes: Sequence[int], spread: Spread = in_turn) -> Tensor:
    """Bytes of every agent's frame: the codec's own plan, or on a GPU the same sum without leaving the device."""
    device = next(iter(payload.values())).device
    if device.type == "cpu":
        agents = range(len(next(iter(payload.values()))))
        return torch.tensor(spread(lambda agent: _row_size(payload, before, sizes, agent), agents))  # [N]
    return payload_frame_size_torch(payload, before, sizes)  # [N]


def _row_size(payload: Payload, before: Payload | None, sizes: Sequence[int], agent: int) -> int:
    base = None if before is None else _row(before, agent)
    try:
        return frame_size(_row(payload, agent), schema_of(payload, sizes), base).total
    except WireError as error:
        raise DivergedError(f"agent {agent} would send {error}; try a smaller algorithm.lr") from error


def schema_of(payload: Payload, sizes: Sequence[int]) -> Schema:
    """Which leaves a message has, and how they are cut into layers."""
    for name, leaf in payload.items():
        if leaf.dtype not in (torch.bool, torch.float32):
            raise WireError(f"leaf {name!r} is {leaf.dtype}; allowed: bool, float32")
    masks = {name: leaf[0].numel() for name, leaf in payload.items() if leaf.dtype == torch.bool}
    values = {name: leaf[0].numel() for name, leaf in payload.items() if leaf.dtype != torch.bool}
    return Schema.of_sizes(masks, values, sizes)


def entropy_bits(ones: Tensor, sizes: Sequence[int]) -> Tensor:
    """Σ_l n_l H2(k_l / n_l)."""
    total = _on_device(tuple(sizes), ones.device)  # [L]
    p = ones.double() / total
    each = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)) / log(2.0)
    return (each * total).sum(1)  # [N]


@lru_cache(maxsize=16)
def _on_device(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept there: a copy from the host would make the round wait."""
    return torch.tensor(sizes, dtype=torch.float64, device=device)


def _row(payload: Payload, agent: int) -> dict[str, NDArray[Any]]:
    return {name: leaf[agent].flatten().numpy() for name, leaf in payload.items()}
