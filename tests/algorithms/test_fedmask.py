"""FedMask: masks averaged where they overlap, in two readings."""

from dataclasses import replace
from math import log

import pytest
import torch
from worked_cases import Gradients, agents, close, make, mixing, play, rows

from peermask.algorithms.contract import Clock

ONES = [1.0, 1.0, 1.0, 1.0, 0.5]
IDENTITY = {"lr": 1.0, "delta": 1.0, "through": "identity"}


def test_the_first_pass_finds_the_support_and_scores_start_again() -> None:
    """Two warm-up steps of g = [3 1 0 −1] leave scores [−5 −1 1 3]: the best two are the support. Then one step
    of the third batch on the support alone."""
    method = make("fedmask", ONES, {**IDENTITY, "warmup_steps": 2})
    warm, last = rows([3, 1, 0, -1, 0]), rows([9, 9, 0.5, 2, 0])
    state = method.init(agents(2))
    assert state.support.all()
    learned, _ = method.learn(state, Gradients((warm, warm, last)), clock())
    assert learned.support.tolist() == [[False, False, True, True]]
    close(learned.scores[:, 2:], rows([0.5, -1]))
    payload = method.share(learned)
    assert payload["mask"].tolist() == [[False, False, True, False]]
    assert payload["support"].tolist() == [[False, False, True, True]]


def test_the_gradient_passes_the_threshold_as_through_a_sigmoid() -> None:
    """w ∂f/∂v σ'(0⁺) ≈ ¼ of the gradient."""
    method = make("fedmask", [2.0, 1.0, 1.0, 1.0, 0.5], {"lr": 1.0, "delta": 1e-6, "variant": "overlap"})
    state = method.init(agents(4))
    learned, _ = method.learn(state, Gradients((rows([4, 4, 0, 0, 0]),)), clock())
    close(learned.scores, rows([-2, -1, 0, 0]))


def test_votes_replace_scores_where_two_hold_an_entry_and_do_not_tie() -> None:
    """Three agents; entry 0 is held by all and kept by two: ā = 2/3, logit = log 2. Entry 1 is held by two and tied.
    Entry 2 is held by agent 0 alone. Entry 3 is held and kept by two: ā = 1, clipped to 0.95, logit = log 19."""
    method = make("fedmask", ONES, IDENTITY)
    state = method.init(agents(4, 4, 4))
    state = replace(
        state,
        scores=rows([1, 1, 1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]),
        support=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 0, 0]], dtype=torch.bool),
    )
    fused = method.fuse(state, method.share(state), mixing(3), clock(2))
    close(fused.scores[0], rows([log(2), 1, 1, log(19)])[0])
    close(fused.scores[1, [0, 1, 3]], rows([log(2), -1, log(19)])[0])
    close(fused.scores[2, :1], rows([log(2)])[0])
    assert (method.local_model(fused)[2, :4] != 0).tolist() == [True, False, False, False]


def test_a_softer_vote_keeps_some_memory() -> None:
    """β = ½: halfway from −1 to log 2."""
    method = make("fedmask", ONES, {**IDENTITY, "beta": 0.5})
    state = replace(method.init(agents(4, 4, 4)), scores=rows([1] * 4, [1] * 4, [-1] * 4))
    fused = method.fuse(state, method.share(state), mixing(3), clock(2))
    close(fused.scores[2], torch.full((4,), (log(2) - 1) / 2))


@pytest.mark.parametrize(
    ("rule", "kept"), [("majority", [True, True, False, False]), ("intersect", [True, False, False, False])]
)
def test_an_entry_too_few_keep_is_given_up(rule: str, kept: list[bool]) -> None:
    """Kept by 3, 2, 1 and 0 of three: agent 0 loses what less than half keep, or what not all keep."""
    method = make("fedmask", ONES, {**IDENTITY, "variant": "overlap", "rule": rule})
    state = replace(method.init(agents(2, 2, 2)), scores=rows([1, 1, 1, -1], [1, 1, -1, -1], [1, -1, -1, -1]))
    fused = method.fuse(state, method.share(state), mixing(3), clock(2))
    assert (fused.scores[0] > 0).tolist() == kept
    close(fused.scores[2], rows([1, -1, -1, -1])[0])


def test_first_masks_of_the_overlap_form_are_nested() -> None:
    method = make("fedmask", ONES, {"variant": "overlap"})
    first = method.local_model(method.init(agents(1, 3)))[:, :4] != 0
    assert first.sum(1).tolist() == [1, 3]
    assert not (first[0] & ~first[1]).any()


def test_fusing_overlaps_never_adds_an_entry() -> None:
    method = make("fedmask", ONES, {**IDENTITY, "variant": "overlap"})
    for seed in range(20):
        scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        state = replace(method.init(agents(2, 2, 2, 2, 2)), scores=scores)
        fused = method.fuse(state, method.share(state), mixing(5), clock(2))
        assert not ((fused.scores > 0) & (scores <= 0)).any()


def test_a_whole_round_runs() -> None:
    method = make("fedmask", ONES, IDENTITY)
    played = play(method, method.init(agents(2, 3)), Gradients((rows([1, 2, 3, 4, 0], [4, 3, 2, 1, 0]),)), mixing(2))
    assert played.state.support.sum(1).tolist() == [2, 3]


def clock(round: int = 1) -> Clock:
    return Clock(round, 100)
