"""Agents that lie: they learn as all others do and send something else. To test how many a method tolerates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.errors import ConfigError
from peermask.graph.links import Links
from peermask.masks.guard import HALFWAY, distances, ones_by_layer
from peermask.masks.select import top_fraction_by_layer
from peermask.registry import Options
from peermask.streams import stream
from peermask.wire.schema import Payload

# Shapes: N agents, P weights of a leaf, L layers

INSIDE = 0.9  # of the guard's limit: how far off a crafted mask lies
MEDIANS = 1.5  # the guard's usual factor, which a liar is taken to know
SCATTER = 0.3  # how far liars prefer the same entries over those most or least agreed on


class LiarOptions(Options):
    """Some agents send false messages. Accuracies are then those of the honest agents."""

    count: Annotated[int, Field(ge=1)] = Field(description="how many agents lie; fewer than half of them")
    kind: Literal["random", "inverted", "crafted"] = Field(
        "random",
        description="what they send: as many ones at random places, the opposite of what they learned, or a mask as "
        "far off as a guard still believes, away from what their neighbours agree on, all liars alike",
    )


def pick_liars(options: LiarOptions, agents: int, seed: int) -> tuple[int, ...]:
    """The agents that lie; those of a smaller count lie in a larger one as well."""
    if 2 * options.count >= agents:
        most = (agents - 1) // 2
        raise ConfigError(
            f"liars.count = {options.count}: the guard cannot handle half of {agents} agents or more, "
            f"since lies are then the majority; at most {most}"
        )
    return tuple(sorted(stream(seed, "liars").permutation(agents)[: options.count].tolist()))


class Liars:
    """Replaces some agents' messages by lies."""

    def __init__(self, kind: str, ids: Sequence[int], layers: Sequence[int], seed: int, device: torch.device) -> None:
        self.kind, self.ids, self.layers, self.seed, self.device = kind, tuple(ids), tuple(layers), seed, device

    def falsify(
        self,
        messages: Payload,
        links: Links,
        clock: Clock,
        agents: Sequence[int] | None = None,
        here: slice = slice(None),
    ) -> Payload:
        """Replace the liars' rows of messages [N, ...]; `links` says which agent hears which.

        With messages of only some `agents`, those `here` lie, whose neighbours are among them.
        """
        liars = {row: agent for row, agent in enumerate(agents or range(len(links))) if agent in self.ids}
        lies = {name: leaf.clone() for name, leaf in messages.items()}
        for row in sorted(set(range(len(links))[here]) & set(liars)):
            drawn = stream(self.seed, "lies", liars[row], clock.round).raw(1)[0]
            hears = links.rows(slice(row, row + 1))
            honest = [j for j in hears.senders.tolist() if j not in liars]
            for name, leaf in messages.items():
                offset = int(drawn % np.uint64(leaf[row].numel()))
                is_mask = leaf.dtype == torch.bool
                lies[name][row] = (
                    self._mask(leaf, row, hears, honest, offset) if is_mask else self._values(leaf[row], offset)
                )
        return lies

    def _values(self, own: Tensor, offset: int) -> Tensor:
        if self.kind == "inverted":
            return -own
        if self.kind == "crafted":
            raise ConfigError("liars.kind = 'crafted': only masks can be crafted; this algorithm sends real values")
        return own.roll(offset)

    def _mask(self, leaf: Tensor, row: int, hears: Links, honest: list[int], offset: int) -> Tensor:
        own = leaf[row]
        if self.kind == "inverted":
            return ~own
        keep = ones_by_layer(own[None], self.layers)  # [1, L]
        if self.kind == "random":
            return top_fraction_by_layer(self._keys.roll(offset)[None], keep.clamp(min=1), self.layers)[0]
        return self._craft(leaf, row, hears, honest, keep)

    def _craft(self, leaf: Tensor, row: int, hears: Links, honest: list[int], keep: Tensor) -> Tensor:
        """Drops what neighbours agree on and takes up what none of them keeps, as much as a guard lets pass."""
        own, taught = leaf[row], leaf[honest].float()
        agreed = taught.mean(0) if len(taught) else own.float()  # [P]
        usual = hears.median(distances(own[None], leaf, hears, self.layers))
        limit = (MEDIANS * usual).clamp(max=HALFWAY)  # [1]
        sizes = torch.tensor(self.layers, device=self.device)
        swaps = (INSIDE * limit * (keep - keep * keep / sizes)).long()  # [1, L]
        swaps = torch.minimum(swaps, torch.minimum(keep, sizes - keep)).clamp(min=1)
        given_up = torch.where(own, 1.0 + agreed + SCATTER * self._keys, 0.0)
        taken_up = torch.where(own, 0.0, 2.0 - agreed + SCATTER * self._keys)
        dropped = top_fraction_by_layer(given_up[None], swaps, self.layers)[0]
        added = top_fraction_by_layer(taken_up[None], swaps, self.layers)[0]
        return (own & ~dropped) | added

    @cached_property
    def _keys(self) -> Tensor:
        """[P] in (0, 1): one draw for all liars and rounds, since a draw for each takes longer than a round."""
        draw = stream(self.seed, "lies").uniform(sum(self.layers))
        return torch.from_numpy(draw.astype(np.float32)).to(self.device)
