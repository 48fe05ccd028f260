"""The aggregation tensor y: how neighbours' masks weigh in on an agent's own scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peermask.kernels import as_tensor, by_kernels
from peermask.kernels.blocks import BLOCK, SUMS, LayerTables, layer_tables
from peermask.models.layout import Layout


def agreement(votes: Tensor, voters: Tensor) -> Tensor:
    """n_i = Σ_j m_j / |N_i|, and 0 without neighbours.

    Votes are counted before they are divided: counts are exact, so a node's row equals the simulator's bit for
    bit. A sum of weighted masks would differ in the last place, which can flip a mask at the threshold.
    """
    return votes.float().div_(voters.clamp(min=1)[:, None])  # [A, P_w]


def add_own_votes(votes: Tensor, own: Tensor, mask: Tensor) -> Tensor:
    """Votes with those of the agents themselves: `own` [A] for each weight they keep."""
    if by_kernels(votes):
        return add_own_votes_triton(votes, own, mask)
    return torch.addcmul(votes, own[:, None].to(votes.dtype), mask.view(torch.uint8))  # [A, P_w]


def fine_tune(scores: Tensor, gradient: Tensor, votes: Tensor, voters: Tensor, lr: float | Tensor) -> Tensor:
    """z = z½ − η_ft G ⊙ n: a step where neighbours agree.   Paper Eq. (17)"""
    if by_kernels(scores):
        return fine_tune_triton(scores, gradient, votes, voters, lr)
    return torch.sub(scores, agreement(votes, voters).mul_(gradient), alpha=float(lr))  # [A, P_w]


def pull_scores(
    scores: Tensor, votes: Tensor, voters: Tensor, mask: Tensor, gain: float | Tensor, layout: Layout
) -> Tensor:
    """z_l + γ mean|z_l| · sign(z_l) ⊙ (n_l − m_l): scores move towards what neighbours keep; γ may be one each, [A].

    An entry that all neighbours keep and the agent does not grows by γ mean|z|, the opposite shrinks as much, and
    where all agree nothing moves. An agent without messages is not pulled.
    """
    if by_kernels(scores):
        return pull_scores_triton(scores, votes, voters, mask, gain, layout.sizes)
    away = agreement(votes, voters).sub_(mask.view(torch.uint8))  # [A, P_w] n − m
    away *= scores.sign()
    strength = (gain * (voters > 0).to(scores.dtype))[:, None]  # [A, 1]
    for layer in layout.masked:
        away[:, layer.span] *= scores[:, layer.span].abs().mean(dim=1, keepdim=True) * strength
    return away.add_(scores)


def join_scores(scores: Tensor, votes: Tensor, voters: Tensor, layout: Layout) -> Tensor:
    """sign(z) (|z| + mean|z| n): first scores of an agent that joins others, larger where those keep a weight."""
    return aggregated_magnitude(scores, votes, voters, 1.0, layout).mul_(scores.sign())  # [A, P_w]


def aggregated_magnitude(scores: Tensor, votes: Tensor, voters: Tensor, gain: float, layout: Layout) -> Tensor:
    """|y_l| for y_l = z_l + mean|z_l| · sign(z_l) ⊙ n_l, the mean over all entries of the layer, and n = gain · votes /
    voters: all that a threshold needs of y.   Paper Eq. (11)"""
    if by_kernels(scores):
        return aggregated_magnitude_triton(scores, votes, voters, gain, layout.sizes)
    heard = agreement(votes, voters)
    if gain != 1.0:
        heard *= gain
    magnitude = scores.abs()  # [A, P_w]
    without_sign = not bool(magnitude.amin() > 0)  # or it is NaN; three times as fast as `min`
    for layer in layout.masked:
        # |z + mean · sign(z) · n| = |z| + mean · n, but for z = 0, which has no sign
        heard[:, layer.span] *= magnitude[:, layer.span].mean(dim=1, keepdim=True)
    magnitude += heard
    return magnitude.masked_fill_(scores == 0, 0.0) if without_sign else magnitude


# On a GPU, by kernels

_PIECE = 2048  # entries of a step


def aggregated_magnitude_triton(
    scores: Tensor, votes: Tensor, voters: Tensor, gain: float, sizes: Sequence[int]
) -> Tensor:
    """|z| + mean|z_l| · gain · votes / voters where z is not 0: [A, P]."""
    from peermask.kernels.scores_triton import magnitude_kernel

    tables, scores = layer_tables(tuple(sizes), scores.device), scores.contiguous()
    sums, out = _block_sums(scores, tables), torch.empty_like(scores)
    (agents, count), width = sums.shape, scores.shape[1]
    magnitude_kernel[(count, agents)](
        scores, votes.contiguous(), voters.contiguous(), sums, tables.blocks, tables.firsts, tables.sizes, out, gain,
        width, count, tables.in_lines, BLOCK, SUMS, num_warps=8,
    )  # fmt: skip
    return out


def fine_tune_triton(scores: Tensor, gradient: Tensor, votes: Tensor, voters: Tensor, lr: float | Tensor) -> Tensor:
    """z − lr · (votes / voters · G): [A, P_w]."""
    from peermask.kernels.scores_triton import fine_tune_kernel

    scores, gradient, votes = scores.contiguous(), gradient.contiguous(), votes.contiguous()
    agents, width = scores.shape
    out = torch.empty_like(scores)
    grid = (-(-width // _PIECE), agents)
    fine_tune_kernel[grid](scores, gradient, votes, voters.contiguous(), out, as_tensor(lr, scores), width, _PIECE)
    return out


def add_own_votes_triton(votes: Tensor, own: Tensor, mask: Tensor) -> Tensor:
    """votes + own · mask: [A, P_w]."""
    from peermask.kernels.votes_triton import own_votes_kernel

    votes, mask = votes.contiguous(), mask.contiguous()
    agents, width = votes.shape
    out = torch.empty_like(votes)
    grid = (-(-width // _PIECE), agents)
    own_votes_kernel[grid](votes, own.to(votes.dtype).contiguous(), mask.view(torch.uint8), out, width, _PIECE)
    return out


def pull_scores_triton(
    scores: Tensor, votes: Tensor, voters: Tensor, mask: Tensor, gain: float | Tensor, sizes: Sequence[int]
) -> Tensor:
    """z + gain · mean|z_l| · sign(z) · (votes / voters − mask), and z itself where there are no voters: [A, P]."""
    from peermask.kernels.scores_triton import pull_kernel

    tables, scores = layer_tables(tuple(sizes), scores.device), scores.contiguous()
    sums, out = _block_sums(scores, tables), torch.empty_like(scores)
    (agents, count), width = sums.shape, scores.shape[1]
    gains = as_tensor(gain, scores).float().expand(agents).contiguous()  # [A]
    pull_kernel[(count, agents)](
        scores, votes.contiguous(), voters.contiguous(), mask.contiguous(), sums, tables.blocks, tables.firsts,
        tables.sizes, gains, out, width, count, tables.in_lines, BLOCK, SUMS, num_warps=8,
    )  # fmt: skip
    return out


def _block_sums(scores: Tensor, tables: LayerTables) -> Tensor:
    """Sum |z| over every block of a layer, from which the means of layers follow: [A, N]."""
    from peermask.kernels.scores_triton import sum_kernel

    (agents, width), count = scores.shape, len(tables.blocks)
    sums = torch.empty(agents, count, device=scores.device)
    sum_kernel[(count, agents)](scores, tables.blocks, sums, width, count, tables.in_lines, BLOCK, num_warps=8)
    return sums
