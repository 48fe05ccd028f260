"""What both ends of a link know of a sender after one of its frames, which the next frame builds on.

A history is named by the checksum of its last frame. That frame names the history before it in turn, back to a
keyframe, so two ends whose histories have the same name have the same history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from peermask.wire.contexts import Contexts
from peermask.wire.schema import MessageRow, Schema


@dataclass(frozen=True)
class History:
    payload: MessageRow  # the last message
    contexts: Mapping[str, Contexts]  # of its masks
    round: int = 0
    name: int = 0

    @classmethod
    def begin(cls, payload: MessageRow, schema: Schema, round: int = 0, name: int = 0) -> History:
        """After a keyframe."""
        contexts = {
            leaf.name: Contexts.begin(payload[leaf.name], leaf.layers) for leaf in schema.leaves if leaf.is_mask
        }
        return cls(payload, contexts, round, name)

    def after(self, payload: MessageRow, round: int = 0, name: int = 0) -> History:
        """After a frame that builds on this history."""
        contexts = {
            leaf: known.after(np.flatnonzero(payload[leaf] ^ self.payload[leaf]))
            for leaf, known in self.contexts.items()
        }
        return History(payload, contexts, round, name)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        tables = (array for c in self.contexts.values() for array in (c.states, c.weights, c.seen, c.flips))
        return sum(array.nbytes for array in (*self.payload.values(), *tables))
