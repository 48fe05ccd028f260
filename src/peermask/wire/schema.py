"""Schema of a payload: named leaves, each a mask or a vector of float32 or float16, cut into layers.

Both ends know the schema before the first frame, so a frame carries only its fingerprint: four bytes instead
of names, dtypes and layer sizes, and a decoder's buffers are sized by the receiver, never by the sender.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from peermask.errors import WireError

Payload = dict[str, Tensor]  # name -> [A, ...]: bool leaves are masks, float leaves real values
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
    is_half: bool = False  # whether values are float16

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= MAX_LAYERS or min(self.layers) < 1 or self.size > MAX_WEIGHTS:
            raise WireError(
                f"leaf {self.name!r} has {len(self.layers)} layers and {self.size} weights; "
                f"allowed: 1 to {MAX_LAYERS} layers of at least 1 weight, {MAX_WEIGHTS} weights in all"
            )

    @property
    def size(self) -> int:
        return sum(self.layers)

    @property
    def dtype(self) -> str:
        return "bool" if self.is_mask else "float16" if self.is_half else "float32"

    @property
    def value_bytes(self) -> int:
        """Bytes of a real value."""
        return 2 if self.is_half else 4

    def check(self, array: Array) -> None:
        """A tensor of another dtype or shape is refused."""
        wanted = np.dtype(self.dtype)
        if array.dtype != wanted or array.shape != (self.size,):
            raise WireError(f"leaf {self.name!r} is {array.dtype} {list(array.shape)}, expected {wanted} [{self.size}]")


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
        """Return a payload's schema: leaves of sum(layers) entries have `layers`; any other (a bias) is one layer."""
        return _of_types(tuple((name, str(leaf.dtype), leaf.size) for name, leaf in payload.items()), tuple(layers))

    @classmethod
    def of_rows(cls, payload: Mapping[str, Tensor], layers: Sequence[int]) -> Schema:
        """The same from the messages of several agents [N, ...]."""
        types = ((name, str(leaf.dtype), leaf.numel() // len(leaf)) for name, leaf in payload.items())
        return _of_types(tuple(types), tuple(layers))

    @cached_property
    def fingerprint(self) -> int:
        """CRC-32 of `name:mask|values|half:n0,n1,...;` over all leaves, as UTF-8."""
        kinds = {"bool": "mask", "float32": "values", "float16": "half"}
        text = "".join(f"{leaf.name}:{kinds[leaf.dtype]}:{','.join(map(str, leaf.layers))};" for leaf in self.leaves)
        return zlib.crc32(text.encode())

    def check(self, payload: MessageRow) -> None:
        """A payload with other leaves, dtypes or shapes is refused."""
        wanted = {leaf.name for leaf in self.leaves}
        if set(payload) != wanted:
            raise WireError(f"payload has leaves {sorted(payload)}, expected {sorted(wanted)}")
        for leaf in self.leaves:
            leaf.check(payload[leaf.name])


@lru_cache(maxsize=16)
def _of_types(types: tuple[tuple[str, str, int], ...], layers: tuple[int, ...]) -> Schema:
    """Return the schema of leaves, each with its name, type in numpy or torch, and number of entries."""
    for name, dtype, _ in types:
        if dtype.removeprefix("torch.") not in ("bool", "float32", "float16"):
            raise WireError(f"leaf {name!r} is {dtype}; allowed: bool, float32, float16")
    return Schema(
        tuple(
            Leaf(name, dtype.endswith("bool"), layers if size == sum(layers) else (size,), dtype.endswith("16"))
            for name, dtype, size in types
        )
    )


def row_of(payload: Mapping[str, Tensor], agent: int) -> MessageRow:
    """One agent's message of [N, ...], as the codec takes it."""
    return {name: leaf[agent].flatten().numpy() for name, leaf in payload.items()}
