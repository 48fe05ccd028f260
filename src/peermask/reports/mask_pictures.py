"""Masks for the eye: first-layer filters, live filters per layer, and how much agents' masks overlap."""

from __future__ import annotations

import base64
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peermask.config.experiment import ExperimentConfig
from peermask.models.frozen import frozen_weights, inits
from peermask.models.layout import Layer, Layout
from peermask.reports.source import Source
from peermask.store.checkpoint import Masks, load_masks

PICTURE_BYTES = 1_000_000  # of all first-layer pictures of a run
MOST_FILTERS = 64
LEAST_FILTERS = 4


@dataclass(frozen=True)
class Window:
    """The filters of the first layer that are drawn: the middle ones, if not all fit."""

    layer: Layer
    start: int
    filters: int

    @property
    def span(self) -> slice:
        each = prod(self.layer.shape[1:])
        return slice(self.layer.offset + self.start * each, self.layer.offset + (self.start + self.filters) * each)


def layers_of(manifest: dict[str, Any]) -> tuple[Layer, ...]:
    """The masked layers as the run wrote them down."""
    layers, offset = [], 0
    for known in manifest["layers"]:
        shape = tuple(known["shape"])
        layers.append(Layer(known["name"], known["kind"], shape, offset, max(1, prod(shape[1:]))))
        offset += layers[-1].size
    return tuple(layers)


def mask_pictures(source: Source, shown: int) -> dict[str, Any] | None:
    """All that the page needs to draw masks of the first `shown` agents; None where no masks were kept."""
    held = source.masks()
    if not held:
        return None
    layers = layers_of(source.result.manifest)
    window = first_window(layers, shown, len(held))
    config = source.result.config
    # The seed knows the signs of weights that are drawn by an init of the package.
    drawn = config.frozen.init in inits and config.frozen.source is None
    seeded = drawn and source.result.manifest["over_frozen_weights"]
    rounds = [_pictures_of(paths, _stamps(paths), layers, window, shown) for paths in held.values()]
    return {
        "rounds": list(held),
        "layers": [
            {"name": layer.name, "title": title, "filters": layer.filters, "size": layer.size}
            for layer, title in zip(layers, titles_of(layers), strict=True)
        ],
        "first": {
            "name": window.layer.name,
            "start": window.start,
            "filters": window.filters,
            "kernel": kernel(window.layer),
            "signs": _signs(window, config) if seeded else None,
            "bits": [picture["first"] for picture in rounds],
        },
        "kept": [picture["kept"] for picture in rounds],  # [rounds][agents][layers]
        "live": [picture["live"] for picture in rounds],
        "overlap": [picture["overlap"] for picture in rounds],  # [rounds][agents][agents], in thousandths
    }


def titles_of(layers: tuple[Layer, ...]) -> list[str]:
    """`conv 1`, `conv 2`, `linear 1`: what people call layers; their names in the module are for programs."""
    seen: dict[str, int] = defaultdict(int)
    titles = []
    for layer in layers:
        seen[layer.kind] += 1
        titles.append(f"{layer.kind} {seen[layer.kind]}")
    return titles


def first_window(layers: tuple[Layer, ...], agents: int, rounds: int) -> Window:
    layer = next((layer for layer in layers if layer.kind == "conv"), layers[0])
    affordable = 8 * PICTURE_BYTES // (max(1, agents * rounds) * prod(layer.shape[1:]))
    filters = min(layer.filters, MOST_FILTERS, max(LEAST_FILTERS, affordable))
    return Window(layer, (layer.filters - filters) // 2, filters)


@lru_cache(maxsize=512)
def _pictures_of(
    paths: tuple[Path, ...], _stamps: tuple[int, ...], layers: tuple[Layer, ...], window: Window, shown: int
) -> dict[str, Any]:
    """Draw one round; cached, since a live page asks again and again."""
    weights = sum(layer.size for layer in layers)
    masks = np.concatenate([load_masks(path, weights) for path in paths[:shown]])[:shown]  # [N, P_w]
    first = np.packbits(masks[:, window.span], axis=1)
    return {
        "first": base64.b64encode(first.tobytes()).decode(),
        "kept": np.stack([masks[:, layer.span].sum(1) for layer in layers], 1).tolist(),
        "live": np.stack([live_filters(masks[:, layer.span], layer) for layer in layers], 1).tolist(),
        "overlap": np.rint(1000 * overlaps(masks)).astype(int).tolist(),
    }


def _stamps(paths: tuple[Path, ...]) -> tuple[int, ...]:
    return tuple(path.stat().st_mtime_ns for path in paths)


def live_filters(mask: Masks, layer: Layer) -> NDArray[np.int64]:
    """[N, n_l] -> [N]: filters that keep at least one weight."""
    alive: NDArray[np.int64] = mask.reshape(len(mask), layer.filters, -1).any(2).sum(1)
    return alive


def overlaps(masks: Masks) -> NDArray[np.float64]:
    """[N, P_w] -> [N, N]: |m_i ∧ m_j| / |m_i ∨ m_j|, and 1 for two empty masks."""
    ones = masks.astype(np.float32)
    both = (ones @ ones.T).astype(np.float64)
    kept = masks.sum(1)
    either = kept[:, None] + kept[None] - both
    shares: NDArray[np.float64] = np.divide(both, either, out=np.ones_like(both), where=either > 0)
    return shares


def kernel(layer: Layer) -> list[int]:
    """[input channels, height, width] of a filter; a row of a linear layer is taken for a square image."""
    if len(layer.shape) == 4:
        return list(layer.shape[1:])
    size = prod(layer.shape[1:])
    for channels in (1, 3):
        side = isqrt(size // channels)
        if channels * side * side == size:
            return [channels, side, side]
    return [1, 1, size]


def _signs(window: Window, config: ExperimentConfig) -> str:
    """One bit per weight drawn: 1 where w is positive."""
    alone = Layout((window.layer,), ())
    values = frozen_weights(alone, config.frozen.init, config.frozen.bias_init, config.seed).values.numpy()
    start = window.span.start - window.layer.offset
    part = values[start : start + window.span.stop - window.span.start]
    return base64.b64encode(np.packbits(part > 0).tobytes()).decode()
