"""The construction of the masks, as in the proof: each target weight becomes one random subset-sum problem.

Take target layer l and its two layers of g, w1 [I, C, d, d] and w2 [O, I]. Give every hidden channel h one
output channel o(h) and let the mask keep

    m2[o, h]       only where o = o(h);
    m1[h, c, y, x] only where w1[h, c, y, x] > 0.

Inputs are non-negative, so what reaches the ReLU between the two layers is non-negative as well and passes
unchanged. The pair is then one convolution with the weights

    v̂[o, c, y, x] = Σ_{h: o(h) = o} m1[h, c, y, x] · w2[o, h] · w1[h, c, y, x],

and no mask entry m1[h, c, y, x] occurs in two of these sums: each target weight has its own subset to choose,
from I / O products of which about half are usable. The sign comes from w2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peermask.errors import ModelError
from peermask.paper.theory.networks import Layers, Masks, RandomNet, Target
from peermask.streams import stream

# Subset sums of up to `EXACT_ITEMS` numbers are solved exactly, by meeting in the middle: the 2^(k/2) sums of one half
# are sorted, and each sum of the other half looks up its nearest partner. With more numbers, that many are solved
# exactly, once for each of `TRIES` settings of the others.

EXACT_ITEMS = 24
TRIES = 16
ENTRIES_AT_ONCE = 1 << 21  # of float64: the largest table that is held at a time, 16 MiB


def closest_subsets(items: Tensor, usable: Tensor, targets: Tensor, *, exact_items: int = EXACT_ITEMS) -> Tensor:
    """Find the subset of each problem's usable items whose sum is nearest to each of its targets.

    items [P, K], usable [P, K] bool, targets [P, T] -> kept [P, T, K] bool. Problems share nothing; the
    targets of one problem share its table of sums, which is what makes a second agent nearly free.
    """
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


def construct_masks(net: RandomNet, targets: Sequence[Target]) -> list[Masks]:
    """One mask of the same g for each target, so that g_m is as near to it as the construction allows."""
    layers: list[list[Tensor]] = [[] for _ in targets]
    for number, (first, second) in enumerate(net.blocks()):
        items, usable = products(first, second)  # [P, n] each
        wanted = torch.stack([target.layers[number].flatten() for target in targets], dim=1)  # [P, T]
        kept = closest_subsets(items, usable, wanted)  # [P, T, n]
        for agent, gathered in enumerate(layers):
            gathered += layer_masks(kept[:, agent], first, second)
    return [tuple(gathered) for gathered in layers]


def products(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers each target weight may choose from, and which of them the ReLU would pass: both [P, n].

    Problem p is target weight (o, c, y, x) in row-major order; hidden channel h = j·O + o is its item j.
    """
    grouped = _by_output(first, second.shape[0])  # [O, C, d, d, n]
    scale = _own_weights(second)  # [O, n]
    return ((grouped * scale[:, None, None, None, :]).flatten(0, 3), (grouped > 0).flatten(0, 3))


def out_of_reach(net: RandomNet, target: Target) -> int:
    """How many target weights no subset can reach: beyond the sum of all usable products of their sign."""
    count = 0
    for (first, second), weight in zip(net.blocks(), target.layers, strict=True):
        items, usable = products(first, second)  # [P, n]
        kept, wanted = items * usable, weight.flatten()
        count += int(((wanted > kept.clamp(min=0).sum(1)) | (wanted < kept.clamp(max=0).sum(1))).sum())
    return count


def subsets(net: RandomNet, masks: Masks) -> list[Tensor]:
    """Entries that the mask keeps of every problem's items, by target layer: the reverse of `layer_masks`."""
    pairs = zip(net.blocks(), masks[::2], strict=True)
    return [_by_output(mask, second.shape[0]).flatten(0, 3) for (_, second), mask in pairs]  # [P, n] each


def collapse(net: RandomNet, masks: Masks) -> Layers:
    """The L convolutions v̂ that g_m amounts to on non-negative inputs."""
    masked = net.masked(masks)
    if any(bool((weight < 0).any()) for weight in masked[::2]):
        raise ModelError("a kept first-layer entry is negative: then g_m is not a chain of convolutions")
    return tuple(
        torch.einsum("oh,hcyx->ocyx", second[:, :, 0, 0], first)
        for first, second in zip(masked[::2], masked[1::2], strict=True)
    )


def _by_output(first: Tensor, outs: int) -> Tensor:
    grouped: Tensor = first.unflatten(0, (-1, outs))  # [n, O, C, d, d]
    return grouped.permute(1, 2, 3, 4, 0)  # [O, C, d, d, n]


def _own_weights(second: Tensor) -> Tensor:
    """w2[o(h), h], the one 1 x 1 weight a hidden channel may keep: [O, n]."""
    outs = second.shape[0]
    return second.reshape(outs, -1, outs).diagonal(dim1=0, dim2=2).T


def layer_masks(kept: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """kept [P, n] -> m1 of w1's shape and m2 of w2's; an unused hidden channel is dropped from m2 too."""
    outs, ins, side = second.shape[0], first.shape[1], first.shape[2]
    grouped = kept.reshape(outs, ins, side, side, -1).permute(4, 0, 1, 2, 3)  # [n, O, C, d, d]
    read = grouped.flatten(2).any(-1)  # [n, O]
    second_mask = torch.diag_embed(read).permute(2, 0, 1).reshape(second.shape)  # [O, n, O] -> [O, I, 1, 1]
    return grouped.reshape(first.shape), second_mask


# Solving each agent's subset sums to the last digit picks unrelated subsets for nearly equal weights. But many
# subsets are good enough. Here agent 2 starts from agent 1's mask and, for each target weight, flips the fewest
# entries that bring its own weight within a tolerance.

MOST_FLIPS = 3
PROBLEMS_AT_ONCE = 64


def construct_near(net: RandomNet, target: Target, start: Masks, tolerance: float) -> Masks:
    """A mask for `target` near `start`: every target weight is met within `tolerance`, or as well as can be."""
    masks: list[Tensor] = []
    starts = subsets(net, start)
    for (first, second), weight, begin in zip(net.blocks(), target.layers, starts, strict=True):
        items, usable = products(first, second)  # [P, n]
        kept = nearest_subsets(items, usable, weight.flatten(), begin, tolerance)
        masks += layer_masks(kept, first, second)
    return tuple(masks)


def nearest_subsets(items: Tensor, usable: Tensor, targets: Tensor, start: Tensor, tolerance: float) -> Tensor:
    """items, usable, start [P, n], targets [P] -> kept [P, n]: at most three flips, else the closest subset."""
    kept = closest_subsets(items, usable, targets[:, None])[:, 0]  # [P, n]
    missing = targets - (items * start).sum(1)  # [P]
    done = missing.abs() <= tolerance  # without a flip
    kept[done] = start[done]
    effect = torch.where(usable, items * (1 - 2 * start.to(items.dtype)), torch.inf)  # of flipping an entry
    for flips in range(1, MOST_FLIPS + 1):
        choices = torch.combinations(torch.arange(items.shape[1]), flips)  # [c, flips]
        if not len(choices):
            break
        for rows in (~done).nonzero()[:, 0].split(PROBLEMS_AT_ONCE):
            error = (missing[rows, None] - effect[rows][:, choices].sum(-1)).abs()  # [r, c]
            best = error.min(1)
            good = best.values <= tolerance
            flipped = start[rows[good]].clone()
            chosen = choices[best.indices[good]]  # [r', flips]
            kept[rows[good]] = flipped ^ torch.zeros_like(flipped).scatter(1, chosen, True)
            done[rows[good]] = True
    return kept
