"""Parameter vectors as messages, and their means."""

import networkx as nx
import torch
from worked_cases import close, mixing, rows

from peermask.algorithms.message import as_message, as_params, holders_mean, mix, mix_rest
from peermask.graph.sums import product_in_full

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
