"""Parameter vectors as messages, their means, and the clipped mean with distances worked by hand."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from worked_cases import Gradients, agents, close, make, mixing, play, rows

from peermask.algorithms.message import (
    as_message,
    as_params,
    clip_messages,
    holders_mean,
    lower_medians,
    mix,
    mix_rest,
    neighbour_weights,
)
from peermask.graph.links import Links
from peermask.graph.mixing import Mixing
from peermask.graph.sums import product_in_full, weighted_sum
from peermask.wire.schema import Payload

PARAMS = rows([1, 2, 3], [4, 5, 6])


def test_a_vector_travels_in_two_leaves_and_comes_back() -> None:
    message = as_message(PARAMS, weights=2)
    assert {name: list(leaf.shape) for name, leaf in message.items()} == {"weights": [2, 2], "rest": [2, 1]}
    close(as_params(message), PARAMS)


def test_a_network_without_biases_sends_no_empty_leaf() -> None:
    message = as_message(PARAMS, weights=3)
    assert list(message) == ["weights"]
    close(mix(message, mixing(2).closed_mean), rows([2.5, 3.5, 4.5], [2.5, 3.5, 4.5]))
    close(mix_rest(PARAMS, message, mixing(2).closed_mean), PARAMS)


def test_an_entry_is_averaged_over_its_holders_alone() -> None:
    """On the path 0 - 1 - 2 agent 0 hears 0 and 1, agent 1 hears all."""
    values, held = rows([3, 0, 0], [5, 7, 0], [1, 0, 0]), torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 0]]).bool()
    found = holders_mean(mixing(3, nx.path_graph(3)), values, held, nobody=-1.0)
    close(found, rows([4, 7, -1], [3, 7, -1], [3, 7, -1]))


def test_a_full_product_leaves_the_run_as_fast_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        close(product_in_full(rows([0.5, 0.5]), rows([1, 2], [3, 4])), rows([2, 3]))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


# From the first of them the others are at distances 5, 10 and 20 over both leaves.
RECEIVED = {"weights": rows([0, 0], [3, 4], [6, 0], [0, 0]), "rest": rows([0], [0], [8], [20])}


def mean(received: Payload, everyone: Mixing, factor: float) -> torch.Tensor:
    weights = clip_messages(everyone.metropolis, received, everyone, factor)
    return mix(received, lambda leaf: weighted_sum(weights, leaf))


def test_who_is_farther_than_the_median_counts_as_if_at_it() -> None:
    """All W are 1/4 and the lower median is 10: (3, 4, 0)/4 + (6, 0, 8)/4 + (0, 0, 20)/8."""
    close(mean(RECEIVED, mixing(4), 1.0)[:1], rows([2.25, 1.0, 4.5]))


def test_the_factor_moves_the_limit() -> None:
    """Half of 10: (3, 4, 0)/4 + (6, 0, 8)/8 + (0, 0, 20)/16."""
    close(mean(RECEIVED, mixing(4), 0.5)[:1], rows([1.5, 1.0, 2.25]))


def test_with_a_large_factor_it_is_the_mean() -> None:
    close(mean(RECEIVED, mixing(4), 100.0), mix(RECEIVED, mixing(4).metropolis_mean))


def test_equal_models_stay_and_who_hears_nobody_keeps_its_own() -> None:
    same = {"weights": rows(*[[1, 2]] * 4)}
    close(mean(same, mixing(4), 1.0), same["weights"])
    alone = mixing(4).rows(slice(2, 3)).restrict(torch.tensor([2]))
    close(mean({"weights": rows([6, 7])}, alone, 1.0), rows([6, 7]))


def test_however_far_a_liar_goes_it_moves_nobody_farther() -> None:
    moved = [mean({"weights": rows([0, 0], [1, 0], [0, far])}, mixing(3), 1.0)[:1] for far in (1e2, 1e6)]
    close(moved[0], rows([1 / 3, 1 / 3]))  # the nearer of two neighbours sets the limit
    close(moved[1], moved[0])


def test_the_lower_median() -> None:
    links = Links.of(torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool))
    assert lower_medians(np.array([4.0, 1, 3, 2, 4, 1, 3, 7]), links).tolist() == [2.0, 3.0, 7.0, 0.0]


def test_the_weights_of_the_closed_mean() -> None:
    path = mixing(3, nx.path_graph(3))
    values = rows([6, 0], [0, 12], [0, 0])
    close(weighted_sum(neighbour_weights(path, "closed"), values), path.closed_mean(values))


def test_a_node_computes_the_row_of_the_simulator_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(6, 500, generator=draw)
    ring = mixing(6, nx.cycle_graph(6))
    whole = mean({"weights": values}, ring, 0.7)
    for agent in range(6):
        columns = torch.tensor(sorted({agent, (agent - 1) % 6, (agent + 1) % 6}))
        node = ring.rows(slice(agent, agent + 1)).restrict(columns)
        assert torch.equal(mean({"weights": values[columns]}, node, 0.7)[0], whole[agent])


@pytest.mark.parametrize("form", ["adapt-then-combine", "lian"])
def test_a_round_of_dsgd_with_a_clip(form: str) -> None:
    """On a path of three. After the step x½ = x − 3 g. Agent 1 is √18 from agent 0 and √27 from agent 2, whose
    difference (0, 3, −3, 0, −3) counts √(18/27) times; the others have one neighbour, whose distance is the median."""
    gradients = rows([1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1])
    method = make("dsgd", [3, 3, 3, 3, 3], {"lr": 3.0, "clip": 1.0, "form": form})
    played = play(method, method.init(agents(4, 4, 4)), Gradients((gradients,)), mixing(3, nx.path_graph(3)))
    if form == "lian":  # all share the first model, and go on with their own steps
        close(played.model, rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 0]))
        return
    part = (18 / 27) ** 0.5
    close(played.model, rows([1, 2, 3, 3, 3], [2, 1 + part, 3 - part, 3, 3 - part], [3, 2, 1, 3, 1]))
