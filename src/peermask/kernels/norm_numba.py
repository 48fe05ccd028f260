"""Windows of four channels of a local response norm in one pass over memory.

Sums are rounded as torch's operations round them: a product and its addition once, together. Square roots are left to
torch, whose library rounds them otherwise.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from peermask.compiled import compiled

WINDOW = 4
PIXELS = 16  # at once: what lies between the steps stays in a core's first cache
ONE, POWER = np.float32(1), np.float32(1.5)


@intrinsic
def _multiply_add(_, a, b, c):  # noqa: ARG001
    """a b + c, rounded once."""

    def generate(_, builder, __, arguments):
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@compiled
def inverse_roots(e, channels, scale, roots):
    """u^-0.5 for u = 1 + scale · Σ e² over channels c-2 to c+1; all channels of some pixels, one after another."""
    most = PIXELS * channels
    squares, sums = np.empty(most, np.float32), np.empty(most, np.float32)
    for start in range(0, len(e), most):
        own, out = e[start : start + most], roots[start : start + most]
        for n in range(len(own)):
            squares[n] = own[n] * own[n]
        _windows(squares[: len(own)], channels, scale, 2, sums)
        for n in range(len(own)):
            out[n] = ONE / np.sqrt(ONE + sums[n])


@compiled
def gradient(e, channels, scale, roots, direct, out):
    """direct - 1.5 scale e Σ direct e u^-1 over channels c-1 to c+2, where `direct` is dy u^-0.75."""
    most = PIXELS * channels
    entries, sums = np.empty(most, np.float32), np.empty(most, np.float32)
    for start in range(0, len(e), most):
        end = start + most
        own, root, dy, de = e[start:end], roots[start:end], direct[start:end], out[start:end]
        for n in range(len(own)):
            entries[n] = root[n] * root[n] * dy[n] * own[n]
        _windows(entries[: len(own)], channels, scale, 1, sums)
        for n in range(len(own)):
            de[n] = _multiply_add(-POWER, sums[n] * own[n], dy[n])


@compiled
def _windows(entries, channels, scale, below, sums):
    """scale · Σ of four entries from c - below on: over all pixels at once, and then again at the ends of each pixel,
    where a neighbour is another pixel's."""
    count = len(entries) - WINDOW + 1
    first, second, third, fourth = entries[:count], entries[1:], entries[2:], entries[3:]
    inner = sums[below : below + max(count, 0)]
    for n in range(len(inner)):
        two = _multiply_add(scale, second[n], scale * first[n])
        inner[n] = _multiply_add(scale, fourth[n], _multiply_add(scale, third[n], two))
    for pixel in range(0, len(entries), channels):
        own, out = entries[pixel : pixel + channels], sums[pixel : pixel + channels]
        for c in range(below):
            out[c] = _window(own, c - below, scale)
        for c in range(channels - WINDOW + below + 1, channels):
            out[c] = _window(own, c - below, scale)


@compiled
def _window(entries, first, scale):
    total = np.float32(0)
    for c in range(max(first, 0), min(first + WINDOW, len(entries))):
        total = _multiply_add(scale, entries[c], total)
    return total
