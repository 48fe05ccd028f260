"""Checks of what a neighbour sends: masks must fit its retention, and values must not exceed a bound.

A valid frame of a genuine sender can still be false. A mask with more entries than its sender may keep would outvote
others, and one huge value would make its receivers' models NaN, and then those of their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from peermask.algorithms.contract import Agents, Algorithm
from peermask.errors import WireError
from peermask.wire.schema import MessageRow
from peermask.wire.sets import slices

LARGEST = 1000.0  # allowed magnitude of a value; weights and biases of a model that learns are far smaller


class Admission:
    def __init__(self, algorithm: Algorithm[Any], agents: Agents, sizes: Sequence[int]) -> None:
        """`agents`: all agents of the fleet; `sizes`: weights of each masked layer."""
        self.sizes = sizes
        counts = algorithm.mask_counts(agents)
        self.counts: Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {  # least and most, [N, L]
            name: (least.cpu().numpy(), most.cpu().numpy()) for name, (least, most) in counts.items()
        }

    def __call__(self, sender: int, payload: MessageRow) -> None:
        """Raise a WireError for a payload that an honest sender cannot send."""
        for name, leaf in payload.items():
            if leaf.dtype == np.bool_:
                self._check_counts(sender, name, leaf)
            elif leaf.size and float(np.abs(leaf).max()) > LARGEST:
                raise WireError(f"{name!r} holds {np.abs(leaf).max():.3g}, allowed: {LARGEST:g}", "values")

    def _check_counts(self, sender: int, name: str, mask: np.ndarray[Any, Any]) -> None:
        if name not in self.counts:
            return
        least, most = (bound[sender] for bound in self.counts[name])  # [L]
        for layer, part in enumerate(slices(self.sizes)):
            kept = np.count_nonzero(mask[part])
            if not least[layer] <= kept <= most[layer]:
                allowed = f"{most[layer]}" if least[layer] == most[layer] else f"{least[layer]} to {most[layer]}"
                raise WireError(
                    f"{name!r} keeps {kept} weights of layer {layer}, its retention gives {allowed}", "counts"
                )
