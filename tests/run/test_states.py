"""A state as named tensors, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peermask.run.cuda_graphs import tensors_of, with_tensors


@dataclass(frozen=True)
class Nest:
    scores: Tensor
    votes: Tensor | None = None
    above: Nest | None = None


def test_a_state_within_a_state_is_named_after_it_and_what_is_not_there_is_left_out() -> None:
    state = Nest(torch.zeros(1), above=Nest(torch.ones(1), votes=torch.ones(2)))
    assert {name: len(tensor) for name, tensor in tensors_of(state).items()} == {
        "scores": 1,
        "above.scores": 1,
        "above.votes": 2,
    }


def test_there_and_back() -> None:
    state = Nest(torch.zeros(1), above=Nest(torch.ones(1)))
    other = with_tensors(state, {"scores": torch.full((1,), 5.0), "above.scores": torch.full((1,), 7.0)})
    assert (other.scores.item(), other.above.scores.item()) == (5.0, 7.0)
    assert (state.scores.item(), tensors_of(other)["above.scores"].item()) == (0.0, 7.0)
