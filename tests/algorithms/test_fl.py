"""FL: a server's mean of everybody's models."""

import networkx as nx
from worked_cases import Gradients, agents, close, make, mixing, play, rows

G = rows([4, 0, 0, 0, 8], [0, 4, 0, 0, 0])


def test_the_server_weighs_agents_by_their_samples_and_all_go_on_from_its_mean() -> None:
    """p = [1/4, 3/4]; x = 1 − [1/4 · 4, 3/4 · 4, 0, 0, 1/4 · 8]."""
    method = make("fl", [1, 1, 1, 1, 1], {"lr": 1.0})
    played = play(method, method.init(agents(4, 4)), Gradients((G,)), mixing(2, shares=[100, 300]))
    close(played.model, rows(*[[0, -2, 1, 1, -1]] * 2))


def test_the_uniform_mean_forgets_the_samples() -> None:
    method = make("fl", [1, 1, 1, 1, 1], {"lr": 1.0, "shares": "uniform"})
    played = play(method, method.init(agents(4, 4)), Gradients((G,)), mixing(2, shares=[100, 300]))
    close(played.model, rows(*[[-1, -1, 1, 1, -3]] * 2))


def test_the_graph_does_not_matter() -> None:
    method = make("fl", [1, 1, 1, 1, 1], {"lr": 1.0, "shares": "uniform"})
    apart = mixing(2, nx.empty_graph(2))
    close(play(method, method.init(agents(4, 4)), Gradients((G,)), apart).model, rows(*[[-1, -1, 1, 1, -3]] * 2))
    assert method.hears_all


def test_local_steps_take_further_batches() -> None:
    """Two steps: g, then a gradient of ones; their sum is averaged."""
    method = make("fl", [0, 0, 0, 0, 0], {"lr": 1.0, "local_steps": 2})
    data = Gradients((G, rows([1, 1, 1, 1, 1], [1, 1, 1, 1, 1])))
    close(play(method, method.init(agents(4, 4)), data, mixing(2)).model, rows(*[[-3, -3, -1, -1, -5]] * 2))
