"""Random subset-sum problems, many at once: which of these numbers add up to nearly this one?

Up to `EXACT_ITEMS` numbers the answer is the best there is, found by meeting in the middle: the 2^(k/2) sums
of one half are sorted, and each sum of the other half looks up its nearest partner. Beyond that a search is
made: that many numbers are solved exactly, once for each of `TRIES` settings of the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peermask.errors import ModelError
from peermask.streams import stream

EXACT_ITEMS = 24
TRIES = 16
ENTRIES_AT_ONCE = 1 << 21  # of float64: the largest table that is held at a time, 16 MiB


def closest_subsets(items: Tensor, usable: Tensor, targets: Tensor, *, exact_items: int = EXACT_ITEMS) -> Tensor:
    """For each problem p and each of its targets t, the subset of p's usable items whose sum is nearest to t.

    items [P, K], usable [P, K] bool, targets [P, T] -> kept [P, T, K] bool. Problems share nothing; the
    targets of one problem share its table of sums, which is what makes a second agent nearly free.
    """
    if items.shape != usable.shape or targets.ndim != 2 or targets.shape[0] != items.shape[0]:
        raise ModelError(
            f"subset sums over items {list(items.shape)}, usable {list(usable.shape)}, "
            f"targets {list(targets.shape)}; [P, K], [P, K] and [P, T] are needed"
        )
    if not 2 <= exact_items <= 40:
        raise ModelError(f"exact_items is {exact_items}; 2 to 40 are possible")
    kept = torch.zeros(*targets.shape, items.shape[1], dtype=torch.bool)  # [P, T, K]
    counts = usable.sum(1)
    for count in counts.unique().tolist():
        rows = (counts == count).nonzero()[:, 0]  # [R]: problems of one size are solved as a stack
        where = usable[rows].nonzero()[:, 1].reshape(len(rows), count)  # [R, k]
        tries = 1 if count <= exact_items else TRIES
        table = targets.shape[1] * tries << (min(count, exact_items) + 1) // 2
        for part in torch.arange(len(rows)).split(max(1, ENTRIES_AT_ONCE // table)):
            chosen = _solve(items[rows[part]].gather(1, where[part]), targets[rows[part]], exact_items)
            index = where[part][:, None, :].expand_as(chosen)  # [r, T, k]
            block = torch.zeros(len(part), targets.shape[1], items.shape[1], dtype=torch.bool)
            kept[rows[part]] = block.scatter(2, index, chosen)
    return kept


def _solve(values: Tensor, targets: Tensor, exact_items: int) -> Tensor:
    """values [R, k] all usable, targets [R, T] -> chosen [R, T, k]."""
    head, rest = values[:, :exact_items], values[:, exact_items:]
    if not rest.shape[1]:
        return _meet_in_the_middle(head, targets)
    bits = stream(0, "theory/subset-sum").uniform(TRIES * rest.shape[1]).reshape(TRIES, -1) < 0.5
    settings = torch.from_numpy(bits)  # [S, k - exact]
    settings[0] = False
    offsets = rest @ settings.to(rest.dtype).T  # [R, S]
    shifted = targets[:, :, None] - offsets[:, None, :]  # [R, T, S]
    heads = _meet_in_the_middle(head, shifted.flatten(1)).unflatten(1, shifted.shape[1:])  # [R, T, S, exact]
    errors = ((heads * head[:, None, None, :]).sum(-1) - shifted).abs()
    best = errors.argmin(-1)  # [R, T]
    index = best[..., None, None].expand(*best.shape, 1, exact_items)
    return torch.cat([heads.gather(2, index)[:, :, 0], settings[best]], dim=-1)


def _meet_in_the_middle(values: Tensor, targets: Tensor) -> Tensor:
    """The exact answer, values [R, k], targets [R, T] -> chosen [R, T, k]."""
    half = values.shape[1] // 2
    right_codes, left_codes = _codes(half), _codes(values.shape[1] - half)  # [2^k', k'] bool
    right, order = (values[:, :half] @ right_codes.to(values.dtype).T).sort(dim=1, stable=True)  # [R, 2^k']
    left = values[:, half:] @ left_codes.to(values.dtype).T
    wanted = (targets[:, :, None] - left[:, None, :]).flatten(1)  # [R, T * 2^k'']
    above = torch.searchsorted(right, wanted).clamp(max=right.shape[1] - 1)
    below = (above - 1).clamp(min=0)
    error_above = (wanted - right.gather(1, above)).abs()
    error_below = (wanted - right.gather(1, below)).abs()
    partner = torch.where(error_below < error_above, below, above)
    error = torch.minimum(error_below, error_above).unflatten(1, (targets.shape[1], -1))  # [R, T, 2^k'']
    best = error.argmin(-1)  # [R, T]
    slot = partner.unflatten(1, (targets.shape[1], -1)).gather(2, best[..., None])[..., 0]
    return torch.cat([right_codes[order.gather(1, slot)], left_codes[best]], dim=-1)


def _codes(bits: int) -> Tensor:
    """Every subset of `bits` items, as rows of bool."""
    return (torch.arange(1 << bits)[:, None] >> torch.arange(bits) & 1).bool()  # [2^bits, bits]
