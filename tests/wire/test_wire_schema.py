"""Both ends must mean the same leaves and layers."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from peermask.errors import WireError
from peermask.wire import Leaf, Schema


def test_masks_come_first_then_values_each_by_name():
    payload = {"b": np.zeros(3, np.float32), "z": np.zeros(3, bool), "a": np.zeros(3, bool)}
    assert [leaf.name for leaf in Schema.of(payload, [3]).leaves] == ["a", "z", "b"]


def test_a_leaf_of_another_size_is_one_layer():
    payload = {"mask": np.zeros(5, bool), "bias": np.zeros(2, np.float32)}
    assert [leaf.layers for leaf in Schema.of(payload, [3, 2]).leaves] == [(3, 2), (2,)]


def test_the_fingerprint_covers_names_kinds_and_layers():
    leaf = Leaf("mask", True, (16, 8))
    assert Schema((leaf,)).fingerprint == zlib.crc32(b"mask:mask:16,8;")
    others = [Leaf("mast", True, (16, 8)), Leaf("mask", False, (16, 8)), Leaf("mask", True, (8, 16))]
    assert len({Schema((other,)).fingerprint for other in [leaf, *others]}) == 4


@pytest.mark.parametrize("layers", [(), (0,), (2**28, 1), (1,) * 4097])
def test_impossible_layers_are_refused(layers):
    with pytest.raises(WireError, match="leaf 'mask' has"):
        Leaf("mask", True, layers)


def test_other_dtypes_shapes_and_names_are_refused():
    schema = Schema((Leaf("mask", True, (4,)),))
    with pytest.raises(WireError, match="allowed: bool, float32"):
        Schema.of({"mask": np.zeros(4, np.int64)}, [4])
    with pytest.raises(WireError, match=r"is bool \[3\], expected bool \[4\]"):
        schema.check({"mask": np.zeros(3, bool)})
    with pytest.raises(WireError, match=r"has leaves \['masks'\]"):
        schema.check({"masks": np.zeros(4, bool)})
    with pytest.raises(WireError, match="repeat"):
        Schema((Leaf("mask", True, (4,)), Leaf("mask", False, (4,))))
    with pytest.raises(WireError, match="17 leaves"):
        Schema(tuple(Leaf(f"m{i}", True, (4,)) for i in range(17)))
