"""Openings: a first mask of each agent that every other can compute, so that even its first message is a delta.

Close to the mask of an agent that has not learned yet, Thres(|z| + γ mean|z| n), but in whole numbers: every machine
must find the same, and floats added up in another order would not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.algorithms.contract import Agents
from peermask.masks.masker import Masker
from peermask.masks.scores import ScoreInit

SCORE_BITS = 24  # a score is a multiple of 2^-24
GAIN_BITS = 16


def opening_masks(
    agents: Agents, masker: Masker, init: ScoreInit, seed: int, votes: Callable[[Agents], Tensor], gain: float
) -> Tensor:
    """[A, P_w]; `votes` gives an agent's first n as 0 or 1, [1, P_w]. Agents that begin alike are worked out once."""
    known: dict[object, Tensor] = {}
    rows = []
    for i, agent in enumerate(agents.ids):
        one = agents.rows(slice(i, i + 1))
        alike = (agent if init == "independent" else None, tuple(one.keep[0].tolist()), float(one.retention[0]))
        if alike not in known:
            scores = masker.initial_scores(init, one.ids, seed)[0].numpy()
            known[alike] = opening_mask(scores, votes(one)[0].numpy(), gain, one.keep[0].tolist(), masker.layout.sizes)
        rows.append(known[alike])
    return torch.stack(rows)


def opening_mask(
    scores: NDArray[np.float32], votes: NDArray[np.uint8], gain: float, keep: list[int], sizes: tuple[int, ...]
) -> Tensor:
    """The `keep` largest of each layer, [P_w]; on a tie the first."""
    whole = (np.abs(scores) * np.float32(2**SCORE_BITS)).astype(np.int64)
    mask = np.zeros(len(whole), np.bool_)
    start = 0
    for size, kept in zip(sizes, keep, strict=True):
        part = slice(start, start + size)
        start += size
        mean = int(whole[part].sum()) // size
        raised = whole[part] + (mean * round(gain * 2**GAIN_BITS) >> GAIN_BITS) * votes[part].astype(np.int64)
        limit = np.partition(raised, size - kept)[size - kept] if kept else raised.max() + 1
        mask[part] = raised > limit
        ties = np.flatnonzero(raised == limit)[: kept - int(np.count_nonzero(mask[part]))]
        mask[part.start + ties] = True
    return torch.from_numpy(mask)
