"""Filters of personal models, read from the masks a run kept: how many are alive, and the first layer's in full."""

from __future__ import annotations

from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from peermask.experiment.folder import RunFolder
from peermask.experiment.kept_masks import list_masks, load_masks
from peermask.files import read_json

Masks: TypeAlias = NDArray[np.bool_]

MIDDLE = 20  # filters of the first layer that the paper's figures show


class FirstLayer(BaseModel):
    """Every agent's mask of the first layer."""

    model_config = ConfigDict(frozen=True)

    shape: list[int]  # O, I, height, width
    agents: list[str]  # bits in hex, eight to a byte

    def mask(self, agent: int) -> Masks:
        """[O, I, height, width]"""
        packed = np.frombuffer(bytes.fromhex(self.agents[agent]), np.uint8)
        return np.unpackbits(packed, count=prod(self.shape)).astype(np.bool_).reshape(self.shape)

    def middle(self, agent: int) -> Masks:
        """The filters in the middle, as the paper shows them; all where there are no more."""
        mask = self.mask(agent)
        first = max(0, (len(mask) - MIDDLE) // 2)
        return mask[first : first + MIDDLE]


def live_filters(folder: RunFolder) -> dict[str, list[int]] | None:
    """Layer -> how many filters of each agent keep any weight; None where no masks were kept."""
    masks = _last_masks(folder)  # [N, P_w]
    if masks is None:
        return None
    alive, start = {}, 0
    for layer in read_json(folder.manifest)["layers"]:
        size = prod(layer["shape"])
        by_filter = masks[:, start : start + size].reshape(len(masks), layer["shape"][0], -1)  # [N, O, F]
        alive[layer["name"]] = [int(count) for count in by_filter.any(-1).sum(-1)]
        start += size
    return alive


def first_layer(folder: RunFolder) -> FirstLayer | None:
    """None where no masks were kept, or the network does not begin with a convolution."""
    masks = _last_masks(folder)
    layer = read_json(folder.manifest)["layers"][0]
    if masks is None or len(layer["shape"]) != 4:
        return None
    own = masks[:, : prod(layer["shape"])]
    return FirstLayer(shape=layer["shape"], agents=[np.packbits(mask).tobytes().hex() for mask in own])


def _last_masks(folder: RunFolder) -> Masks | None:
    kept = list_masks(folder.masks)
    if not kept:
        return None
    return load_masks(kept[max(kept)], read_json(folder.manifest)["weights"])
