"""Dis-PFL: sparse weights with moving masks, and densities by the Erdős–Rényi-kernel rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from worked_cases import LAYOUT, Gradients, agents, close, make, mixing, play, rows

from peermask.algorithms.dis_pfl import erk_counts, erk_densities, fire_and_regrow
from peermask.models.architectures import alexnet
from peermask.models.layout import find_layout

FIRST = [4.0, -3.0, 2.0, -1.0, 0.5]
G = rows([1, 1, 1, 1, 1], [0, 0, 0, -2, 1])
MATCHED = {"lr": 1.0, "allocation": "matched"}
MASKS = torch.tensor([[True, True, False, False], [True, False, False, True]])


def start(options: dict[str, object]):  # type: ignore[no-untyped-def]
    """Two agents with masks set by hand."""
    method = make("dis-pfl", FIRST, options)
    state = method.init(agents(2, 2))
    return method, replace(state, mask=MASKS, params=rows([4, -3, 0, 0, 0.5], [4, 0, 0, -1, 0.5]))


def test_entries_are_averaged_over_their_holders_inside_the_own_mask() -> None:
    """x = [3 −4 · ·], [4 · · 1] after the step: the shared first entry becomes 3.5, the others stay."""
    method, state = start(MATCHED)
    played = play(method, state, Gradients((G,)), mixing(2))
    close(played.payload["weights"], rows([3, -4, 0, 0], [4, 0, 0, 1]))
    assert played.payload["mask"].tolist() == MASKS.tolist()
    close(played.model, rows([3.5, -4, 0, 0, -0.5], [3.5, 0, 0, 1, -0.5]))


def test_a_grown_weight_takes_its_holders_value_and_the_message_keeps_the_mask_used() -> None:
    """In round 20 each drops ⌈0.45 · 2⌉ = 1: agent 0 its 3, agent 1 its 1. The dense gradient of a second batch
    grows entry 3 at agent 0, held by agent 1, and entry 2 at agent 1, held by nobody."""
    method, state = start(MATCHED)
    dense = rows([0, 0, 1, 5, 0], [0, 1, 5, 0, 0])
    played = play(method, state, Gradients((G, dense)), mixing(2), round=20)
    assert played.payload["mask"].tolist() == MASKS.tolist()
    assert played.state.mask.tolist() == [[False, True, False, True], [True, False, True, False]]
    close(played.model, rows([0, -4, 0, 1, -0.5], [3.5, 0, 0, 0, -0.5]))


def test_random_regrowth_needs_no_gradient_and_differs_between_agents_and_rounds() -> None:
    method, state = start({**MATCHED, "regrow": "random", "drop": 0.9})
    draws = [method._draws("dis-pfl/grow", (agent,), number) for agent, number in ((0, 20), (0, 40), (1, 20))]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == 3
    assert play(method, state, Gradients((G,)), mixing(2), round=20).state.mask.sum(1).tolist() == [2, 2]


def test_masks_rest_after_their_last_update() -> None:
    method, state = start({**MATCHED, "update_until": 0.1, "drop": 0.9})
    dense = rows([0, 0, 1, 5, 0], [0, 1, 5, 0, 0])
    played = play(method, state, Gradients((G, dense)), mixing(2), round=20, rounds=100)
    assert played.state.mask.tolist() == MASKS.tolist()


def test_a_clipped_gradient_has_at_most_that_norm() -> None:
    """|g| = 2 for the gradient [1 1 1 1 0], so clipping at 1 halves it."""
    method, state = start({**MATCHED, "clip": 1.0})
    data = Gradients((rows([1, 1, 1, 1, 0], [0.5, 0, 0, 0, 0]),))
    close(play(method, state, data, mixing(2)).payload["weights"], rows([3.5, -3.5, 0, 0], [3.5, 0, 0, -1]))


def test_first_masks_are_each_agents_own_draw_of_the_right_size() -> None:
    method = make("dis-pfl", FIRST, MATCHED)
    state = method.init(agents(1, 2, 3, 4))
    assert state.mask.sum(1).tolist() == [1, 2, 3, 4]
    assert bool((state.params[:, :4].bool() == state.mask).all())


def test_the_last_weight_of_a_layer_is_never_dropped() -> None:
    mask = torch.tensor([[False, True, False, False]])
    moved = fire_and_regrow(LAYOUT, mask, rows([0, 1, 0, 0]), rows([9, 0, 9, 9]), share=0.5)
    assert moved.tolist() == mask.tolist()


def test_a_full_layer_stays_full() -> None:
    full = torch.ones(1, 4, dtype=torch.bool)
    assert fire_and_regrow(LAYOUT, full, rows([1, 2, 3, 4]), rows([0, 0, 0, 0]), share=0.5).all()


ALEXNET = find_layout(alexnet((3, 32, 32), 10))


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (0.1, [1, 0.063, 0.031, 0.395, 1]),
        (0.2, [1, 0.130, 0.063, 0.814, 1]),
        (0.3, [1, 0.273, 0.133, 1, 1]),
        (0.4, [1, 0.476, 0.232, 1, 1]),
        (0.5, [1, 0.679, 0.331, 1, 1]),
    ],
)
def test_the_papers_network(retention: float, expected: list[float]) -> None:
    found = erk_densities([layer.shape for layer in ALEXNET.masked], retention)
    assert found == pytest.approx(expected, abs=1.1e-3)


def test_the_total_is_the_retention() -> None:
    counts = erk_counts(ALEXNET, [0.1, 0.3, 1.0])
    assert counts.sum(1).tolist() == pytest.approx([122_733, 368_198, 1_227_328], abs=3)
    assert bool((counts <= torch.tensor(ALEXNET.sizes)).all())
