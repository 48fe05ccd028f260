"""A program's own block of `blocks.block_table`, and its agent's row.

IN_LINES says that every layer and every row begins at a multiple of `blocks.LINE` entries: memory is then read in long
pieces, and neighbouring entries are in one thread, which makes sums up to each entry several times cheaper.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def own_block(blocks_ptr, IN_LINES: tl.constexpr):
    """Its layer, and where it starts and ends."""
    at = blocks_ptr + 3 * tl.program_id(0)
    start = tl.load(at + 1)
    end = tl.load(at + 2)
    if IN_LINES:
        start = tl.multiple_of(start, 16)
        end = tl.multiple_of(end, 16)
    return tl.load(at), start, end


@triton.jit
def own_row(stride, IN_LINES: tl.constexpr):
    """Where the row of its agent starts."""
    start = tl.program_id(1).to(tl.int64) * stride
    if IN_LINES:
        start = tl.multiple_of(start, 16)
    return start
