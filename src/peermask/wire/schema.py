"""What a payload looks like: named leaves, each a mask or a vector of float32, cut into layers.

Both ends know the schema before the first frame, so a frame carries only its fingerprint: four bytes instead
of names, dtypes and layer sizes, and a decoder's buffers are sized by the receiver, never by the sender.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import WireError

Array: TypeAlias = NDArray[Any]
MessageRow: TypeAlias = Mapping[str, Array]

MAX_LEAVES = 16
MAX_LAYERS = 4096
MAX_WEIGHTS = 2**28  # of one leaf


@dataclass(frozen=True)
class Leaf:
    """One named tensor of a payload, flattened to [P] with P = sum(layers)."""

    name: str
    is_mask: bool
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= MAX_LAYERS or min(self.layers) < 1 or self.size > MAX_WEIGHTS:
            raise WireError(
                f"leaf {self.name!r} has {len(self.layers)} layers and {self.size} weights; "
                f"allowed: 1 to {MAX_LAYERS} layers of at least 1 weight, {MAX_WEIGHTS} weights in all"
            )

    @property
    def size(self) -> int:
        return sum(self.layers)

    def check(self, array: Array) -> None:
        """A tensor of another dtype or shape is refused."""
        wanted = np.bool_ if self.is_mask else np.float32
        if array.dtype != wanted or array.shape != (self.size,):
            raise WireError(
                f"leaf {self.name!r} is {array.dtype} {list(array.shape)}, expected {np.dtype(wanted)} [{self.size}]"
            )


@dataclass(frozen=True)
class Schema:
    """The leaves of a payload in their order on the wire: masks first, then values, each by name."""

    leaves: tuple[Leaf, ...]

    def __post_init__(self) -> None:
        if len(self.leaves) > MAX_LEAVES:
            raise WireError(f"payload has {len(self.leaves)} leaves, allowed: {MAX_LEAVES}")
        order = sorted(self.leaves, key=lambda leaf: (not leaf.is_mask, leaf.name))
        if len({leaf.name for leaf in order}) < len(order):
            raise WireError(f"leaf names repeat: {', '.join(leaf.name for leaf in order)}")
        object.__setattr__(self, "leaves", tuple(order))

    @classmethod
    def of(cls, payload: MessageRow, layers: Sequence[int]) -> Schema:
        """The schema of an agent's payload; see `of_sizes`."""
        for name, array in payload.items():
            if array.dtype not in (np.bool_, np.float32):
                raise WireError(f"leaf {name!r} is {array.dtype}; allowed: bool, float32")
        masks = {name: array.size for name, array in payload.items() if array.dtype == np.bool_}
        values = {name: array.size for name, array in payload.items() if array.dtype == np.float32}
        return cls.of_sizes(masks, values, layers)

    @classmethod
    def of_sizes(cls, masks: Mapping[str, int], values: Mapping[str, int], layers: Sequence[int]) -> Schema:
        """Leaves of sum(layers) entries are cut by `layers`; any other (a bias vector) is one layer."""
        table = tuple(int(size) for size in layers)
        cut = {size: table if size == sum(table) else (size,) for size in (*masks.values(), *values.values())}
        return cls(
            tuple(
                Leaf(name, is_mask, cut[size])
                for is_mask, sizes in ((True, masks), (False, values))
                for name, size in sizes.items()
            )
        )

    @cached_property
    def fingerprint(self) -> int:
        """CRC-32 of `name:mask|values:n0,n1,...;` over all leaves, as UTF-8."""
        text = "".join(
            f"{leaf.name}:{'mask' if leaf.is_mask else 'values'}:{','.join(map(str, leaf.layers))};"
            for leaf in self.leaves
        )
        return zlib.crc32(text.encode())

    def check(self, payload: MessageRow) -> None:
        """A payload with other leaves, dtypes or shapes is refused."""
        wanted = {leaf.name for leaf in self.leaves}
        if set(payload) != wanted:
            raise WireError(f"payload has leaves {sorted(payload)}, expected {sorted(wanted)}")
        for leaf in self.leaves:
            leaf.check(payload[leaf.name])
