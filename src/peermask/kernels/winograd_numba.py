"""Winograd's transforms of outputs by compiled loops, both axes of a tile at once, so that what lies between them stays
in the cache.

All factors of Aᵀ are powers of two. So only additions round, and in the order of MKL's matrix product they round as
there.
"""

import numpy as np

from peermask.compiled import compiled

LANES = 1024  # entries of a row at once
TWO, FOUR, EIGHT = np.float32(2), np.float32(4), np.float32(8)
HALF, QUARTER, EIGHTH = np.float32(1 / 2), np.float32(1 / 4), np.float32(1 / 8)


@compiled
def from_points(m, y, left, top):
    """Aᵀ m A as the 4x4 pixels of y from `left` and `top` on, without those beyond its edges: [64, L] -> [W, H, L]."""
    width, height, length = y.shape
    between, beyond = np.empty((4, 8, LANES), np.float32), np.empty(LANES, np.float32)
    for start in range(0, length, LANES):
        end = min(start + LANES, length)
        for i in range(8):
            p = m[8 * i : 8 * i + 8]
            _to_pixels(
                p[0, start:end], p[1, start:end], p[2, start:end], p[3, start:end],
                p[4, start:end], p[5, start:end], p[6, start:end], p[7, start:end],
                between[0, i], between[1, i], between[2, i], between[3, i],
            )  # fmt: skip
        for h in range(min(4, height - top)):
            b = between[h]
            _to_pixels(
                b[0, : end - start], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
                y[left, top + h, start:end],
                y[left + 1, top + h, start:end] if left + 1 < width else beyond,
                y[left + 2, top + h, start:end] if left + 2 < width else beyond,
                y[left + 3, top + h, start:end] if left + 3 < width else beyond,
            )  # fmt: skip


@compiled
def to_points(dy, dm, left, top):
    """The gradient of `from_points`, A dy Aᵀ: [W, H, L] -> [64, L]."""
    width, height, length = dy.shape
    between, beyond = np.zeros((8, 4, LANES), np.float32), np.zeros(LANES, np.float32)
    for start in range(0, length, LANES):
        end = min(start + LANES, length)
        for h in range(min(4, height - top)):
            _to_points(
                dy[left, top + h, start:end],
                dy[left + 1, top + h, start:end] if left + 1 < width else beyond,
                dy[left + 2, top + h, start:end] if left + 2 < width else beyond,
                dy[left + 3, top + h, start:end] if left + 3 < width else beyond,
                between[0, h], between[1, h], between[2, h], between[3, h],
                between[4, h], between[5, h], between[6, h], between[7, h],
            )  # fmt: skip
        for i in range(8):
            b, p = between[i], dm[8 * i : 8 * i + 8]
            _to_points(
                b[0, : end - start], b[1], b[2], b[3],
                p[0, start:end], p[1, start:end], p[2, start:end], p[3, start:end],
                p[4, start:end], p[5, start:end], p[6, start:end], p[7, start:end],
            )  # fmt: skip


# A loop writes one row: of more, the compiler would not find out that they do not overlap, and not vectorise.


@compiled
def _to_pixels(m0, m1, m2, m3, m4, m5, m6, m7, y0, y1, y2, y3):
    """Aᵀ m along one axis."""
    lanes = range(len(m0))
    for n in lanes:
        y0[n] = m0[n] + m1[n] + m2[n] + m3[n] + m4[n] + m5[n] + m6[n]
    for n in lanes:
        y1[n] = m1[n] - m2[n] + TWO * m3[n] - TWO * m4[n] + HALF * m5[n] - HALF * m6[n]
    for n in lanes:
        y2[n] = m1[n] + m2[n] + FOUR * m3[n] + FOUR * m4[n] + QUARTER * m5[n] + QUARTER * m6[n]
    for n in lanes:
        y3[n] = m1[n] - m2[n] + EIGHT * m3[n] - EIGHT * m4[n] + EIGHTH * m5[n] - EIGHTH * m6[n] + m7[n]


@compiled
def _to_points(d0, d1, d2, d3, m0, m1, m2, m3, m4, m5, m6, m7):
    """A d along one axis."""
    lanes = range(len(d0))
    for n in lanes:
        m0[n] = d0[n]
    for n in lanes:
        m1[n] = d0[n] + d1[n] + d2[n] + d3[n]
    for n in lanes:
        m2[n] = d0[n] - d1[n] + d2[n] - d3[n]
    for n in lanes:
        m3[n] = d0[n] + TWO * d1[n] + FOUR * d2[n] + EIGHT * d3[n]
    for n in lanes:
        m4[n] = d0[n] - TWO * d1[n] + FOUR * d2[n] - EIGHT * d3[n]
    for n in lanes:
        m5[n] = d0[n] + HALF * d1[n] + QUARTER * d2[n] + EIGHTH * d3[n]
    for n in lanes:
        m6[n] = d0[n] - HALF * d1[n] + QUARTER * d2[n] - EIGHTH * d3[n]
    for n in lanes:
        m7[n] = d3[n]
