"""A program's own block of `blocks.block_table`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def own_block(blocks_ptr):
    """Its layer, and where it starts and ends."""
    at = blocks_ptr + 3 * tl.program_id(0)
    return tl.load(at), tl.load(at + 1), tl.load(at + 2)
