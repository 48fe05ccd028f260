"""Methods that train weights: models of whole rounds, worked by hand."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor
from worked_cases import Gradients, agents, close, make, mixing, play, rows

from peermask.graph.mixing import Mixing

ONE_EACH = rows([1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1])
PAIR, APART = mixing(2), mixing(2, nx.empty_graph(2))
PATH = mixing(3, nx.path_graph(3))  # agent 1 hears both others; W = [[2 1 0] [1 1 1] [0 1 2]] / 3

ALONE = rows([1, 0, -1, 2, 4], [0, 2, 0, 0, 0])
PULLED = rows([1, 0, 0, 0, 0], [0, 2, 0, 0, 0])
SERVED = rows([4, 0, 0, 0, 8], [0, 4, 0, 0, 0])
PRUNED = rows([3, 0, 0, 3, 1], [0, 1, 0, 0, 0])
FIRST = [4.0, -3.0, 2.0, -1.0, 0.5]

# method, options, first weights, gradient of every agent, mixing, models after the first rounds
DENSE: dict[str, tuple[str, dict[str, Any], list[float], Tensor, Mixing, list[Tensor]]] = {
    "x - 0.1 g": (
        "ind-dense", {"lr": 0.1}, [1, 2, 3, 4, 5], ALONE, PAIR, [rows([0.9, 2, 3.1, 3.8, 4.6], [1, 1.8, 3, 4, 5])],
    ),
    "weight decay, x - 0.1 (g + 0.5 x)": (
        "ind-dense", {"lr": 0.1, "weight_decay": 0.5}, [1, 2, 3, 4, 5], ALONE, PAIR,
        [rows([0.85, 1.9, 2.95, 3.6, 4.35], [0.95, 1.7, 2.85, 3.8, 4.75])],
    ),
    "momentum, u_1 = g and u_2 = 0.5 g + g": (
        "ind-dense", {"lr": 0.1, "momentum": 0.5}, [0] * 5, ALONE, PAIR, [-0.1 * ALONE, -0.25 * ALONE],
    ),
    "adapt, then combine by Metropolis weights": (
        "dsgd", {"lr": 3.0}, [3] * 5, ONE_EACH, PATH, [rows([1, 2, 3, 3, 3], [2, 2, 2, 3, 2], [3, 2, 1, 3, 1])],
    ),
    "the closed mean weighs an agent and its neighbours alike": (
        "dsgd", {"lr": 6.0, "neighbours": "closed"}, [0] * 5, ONE_EACH, PATH,
        [rows([-3, -3, 0, 0, 0], [-2, -2, -2, 0, -2], [0, -3, -3, 0, -3])],
    ),
    "Lian's form, W x - 3 g: in the first round all x are equal": (
        "dsgd", {"lr": 3.0, "form": "lian"}, [3] * 5, ONE_EACH, PATH,
        [
            rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 0]),
            rows([-2, 2, 3, 3, 3], [2, -1, 2, 3, 2], [3, 2, -2, 3, -2]),
        ],
    ),
    "a pull to the neighbours' mean a: x_1 = -g, x_2 = x_1 - (g + (x_1 - a) / 2)": (
        "dsgd-prox", {"lr": 1.0, "mu": 0.5}, [0] * 5, PULLED, PAIR,
        [rows([-1, 0, 0, 0, 0], [0, -2, 0, 0, 0]), rows([-1.5, -1, 0, 0, 0], [-0.5, -3, 0, 0, 0])],
    ),
    "a pull to the round's first model in two steps, -g and -g / 2, then the mean": (
        "dsgd-prox", {"lr": 1.0, "mu": 0.5, "form": "literal"}, [0] * 5, PULLED, PAIR,
        [rows(*[[-0.75, -1.5, 0, 0, 0]] * 2)],
    ),
    "a server weighs agents by their samples, 1/4 and 3/4": (
        "fl", {"lr": 1.0}, [1] * 5, SERVED, mixing(2, shares=[100, 300]), [rows(*[[0, -2, 1, 1, -1]] * 2)],
    ),
    "a server's uniform mean": (
        "fl", {"lr": 1.0, "shares": "uniform"}, [1] * 5, SERVED, mixing(2, shares=[100, 300]),
        [rows(*[[-1, -1, 1, 1, -3]] * 2)],
    ),
    "a server needs no links": (
        "fl", {"lr": 1.0, "shares": "uniform"}, [1] * 5, SERVED, APART, [rows(*[[-1, -1, 1, 1, -3]] * 2)],
    ),
    "ditto's personal model, x' - 3 (g + (x' - x) / 3) with the agreed x of adapt, then combine": (
        "ditto", {"lr": 3.0, "closeness": 1 / 3}, [3] * 5, ONE_EACH, PATH,
        [
            rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 0]),
            rows([-2, 2, 3, 3, 3], [2, -1, 2, 3, 2], [3, 2, -2, 3, -2]),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "options", "first", "gradient", "mixed", "expected"), DENSE.values(), ids=list(DENSE))
def test_dense_models(
    name: str, options: dict[str, Any], first: list[float], gradient: Tensor, mixed: Mixing, expected: list[Tensor]
) -> None:
    method = make(name, first, options)
    state = method.init(agents(*[4] * len(gradient)))
    for number, models in enumerate(expected, 1):
        played = play(method, state, Gradients((gradient,)), mixed, round=number)
        close(played.model, models)
        state = played.state
    assert (played.payload == {}) == (name == "ind-dense")
    assert method.hears_all == (name == "fl")


def test_local_steps_take_further_batches() -> None:
    """Two steps: g, then a gradient of ones; their sum is averaged."""
    method = make("fl", [0, 0, 0, 0, 0], {"lr": 1.0, "local_steps": 2})
    data = Gradients((SERVED, rows([1, 1, 1, 1, 1], [1, 1, 1, 1, 1])))
    close(play(method, method.init(agents(4, 4)), data, PAIR).model, rows(*[[-3, -3, -1, -1, -5]] * 2))


def test_messages_have_the_model_after_the_step_and_lians_that_before() -> None:
    method, lian = (make("dsgd", [3] * 5, {"lr": 3.0, **form}) for form in ({}, {"form": "lian"}))
    played = play(method, method.init(agents(4, 4, 4)), Gradients((ONE_EACH,)), PATH)
    close(played.payload["weights"], rows([0, 3, 3, 3], [3, 0, 3, 3], [3, 3, 0, 3]))
    close(played.payload["rest"], rows([3], [3], [0]))
    close(method.unmixed_model(played.payload), rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 0]))
    before = play(lian, lian.init(agents(4, 4, 4)), Gradients((ONE_EACH,)), PATH)
    close(before.payload["weights"], rows(*[[3] * 4] * 3))
    prox = make("dsgd-prox", [0] * 5, {"lr": 1.0, "mu": 0.5, "form": "literal"})
    pulled = play(prox, prox.init(agents(4, 4)), Gradients((PULLED,)), PAIR)
    close(pulled.payload["weights"], rows([-1.5, 0, 0, 0], [0, -3, 0, 0]))


def test_the_anchor_is_the_neighbours_mean_and_stays_where_nobody_is_heard() -> None:
    method = make("dsgd-prox", [3] * 5, {"lr": 1.0, "mu": 0.5})
    heard, unheard = (play(method, method.init(agents(4, 4)), Gradients((PULLED,)), links) for links in (PAIR, APART))
    close(heard.state.anchor, rows([3, 1, 3, 3, 3], [2, 3, 3, 3, 3]))
    close(unheard.state.anchor, rows(*[[3] * 5] * 2))


def test_ditto_sends_what_dsgd_sends_and_without_the_pull_learns_alone() -> None:
    ditto, dsgd = (make(name, [3] * 5, {"lr": 0.5, "momentum": 0.5}) for name in ("ditto", "dsgd"))
    alone, other = make("ditto", [3] * 5, {"lr": 0.5, "closeness": 0.0}), make("ind-dense", [3] * 5, {"lr": 0.5})
    methods = (ditto, dsgd, alone, other)
    states = [method.init(agents(4, 4, 4)) for method in methods]
    for number in (1, 2, 3):
        played = [
            play(method, state, Gradients((ONE_EACH,)), PATH, round=number)
            for method, state in zip(methods, states, strict=True)
        ]
        assert torch.equal(played[0].payload["weights"], played[1].payload["weights"])
        close(played[0].state.agreed, played[1].model)
        close(played[2].model, played[3].model)
        states = [one.state for one in played]


# method, options, weights that agents may keep, mixing, weights that are trained on, models
PRUNING: dict[str, tuple[str, dict[str, Any], tuple[int, int], Mixing, Tensor, Tensor]] = {
    "x - g = [1 -3 2 -4 -0.5]: the largest are kept, and the bias always": (
        "ind-weipru", {}, (2, 1), PAIR,
        rows([0, -3, 0, -4, -0.5], [4, 0, 0, 0, 0.5]), rows([0, -3, 0, -4, -0.5], [4, 0, 0, 0, 0.5]),
    ),
    "soft pruning keeps the latent weights dense": (
        "ind-weipru", {"pruning": "soft"}, (2, 1), PAIR,
        rows([1, -3, 2, -4, -0.5], [4, -4, 2, -1, 0.5]), rows([0, -3, 0, -4, -0.5], [4, 0, 0, 0, 0.5]),
    ),
    "the plain average of [0 -3 0 -4] and [4 -4 0 0] counts zeros; each deploys two of its three entries": (
        "avr-weipru", {}, (2, 2), PAIR, rows(*[[2, -3.5, 0, -2, 0]] * 2), rows(*[[2, -3.5, 0, 0, 0]] * 2),
    ),
    "the average is deployed as it is": (
        "avr-weipru", {"eval_dense": True}, (2, 2), PAIR,
        rows(*[[2, -3.5, 0, -2, 0]] * 2), rows(*[[2, -3.5, 0, -2, 0]] * 2),
    ),
    "the open average leaves the own weights out": (
        "avr-weipru", {"neighbours": "open"}, (2, 2), PAIR,
        rows([4, -4, 0, 0, 0.5], [0, -3, 0, -4, -0.5]), rows([4, -4, 0, 0, 0.5], [0, -3, 0, -4, -0.5]),
    ),
    "the open average of an agent without neighbours is its own": (
        "avr-weipru", {"neighbours": "open"}, (2, 2), APART,
        rows([0, -3, 0, -4, -0.5], [4, -4, 0, 0, 0.5]), rows([0, -3, 0, -4, -0.5], [4, -4, 0, 0, 0.5]),
    ),
    "the partial average, [4 -7 0 -4] over the holders [1 2 0 1]": (
        "par-weipru", {}, (2, 2), PAIR, rows(*[[4, -3.5, 0, -4, 0]] * 2), rows(*[[4, 0, 0, -4, 0]] * 2),
    ),
    "the partial average on the own support": (
        "par-weipru", {"support": "own"}, (2, 2), PAIR,
        rows([0, -3.5, 0, -4, 0], [4, -3.5, 0, 0, 0]), rows([0, -3.5, 0, -4, 0], [4, -3.5, 0, 0, 0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "options", "keep", "mixed", "trained", "model"), PRUNING.values(), ids=list(PRUNING))
def test_weights_pruned_by_magnitude(
    name: str, options: dict[str, Any], keep: tuple[int, int], mixed: Mixing, trained: Tensor, model: Tensor
) -> None:
    method = make(name, FIRST, {"lr": 1.0, **options})
    played = play(method, method.init(agents(*keep)), Gradients((PRUNED,)), mixed)
    close(played.state.params, trained)
    close(played.model, model)
    assert (played.payload == {}) == (name == "ind-weipru")


def test_training_sees_the_pruned_model_and_moves_the_whole_one() -> None:
    """Straight through: the second round steps from the three-entry mean, not from the two deployed."""
    method = make("avr-weipru", FIRST, {"lr": 1.0})
    first = play(method, method.init(agents(2, 2)), Gradients((PRUNED,)), PAIR)
    close(first.payload["weights"], rows([0, -3, 0, -4], [4, -4, 0, 0]))
    second = play(method, first.state, Gradients((PRUNED,)), PAIR, round=2)
    close(second.payload["weights"], rows([0, -3.5, 0, -5], [2, -4.5, 0, 0]))
