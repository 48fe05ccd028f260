"""DSGD: whole models, averaged over neighbours."""

import networkx as nx
from worked_cases import Gradients, agents, close, make, mixing, play, rows

G = rows([1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1])
PATH = nx.path_graph(3)  # agent 1 hears both others


def test_adapt_then_combine_averages_the_models_after_their_steps() -> None:
    """On the path all Metropolis weights between neighbours are 1/3: W = [[2 1 0] [1 1 1] [0 1 2]] / 3."""
    method = make("dsgd", [3, 3, 3, 3, 3], {"lr": 3.0})
    played = play(method, method.init(agents(4, 4, 4)), Gradients((G,)), mixing(3, PATH))
    close(played.payload["weights"], rows([0, 3, 3, 3], [3, 0, 3, 3], [3, 3, 0, 3]))
    close(played.payload["rest"], rows([3], [3], [0]))
    close(played.model, rows([1, 2, 3, 3, 3], [2, 2, 2, 3, 2], [3, 2, 1, 3, 1]))


def test_the_closed_mean_weighs_an_agent_and_its_neighbours_alike() -> None:
    method = make("dsgd", [0, 0, 0, 0, 0], {"lr": 6.0, "neighbours": "closed"})
    played = play(method, method.init(agents(4, 4, 4)), Gradients((G,)), mixing(3, PATH))
    close(played.model, rows([-3, -3, 0, 0, 0], [-2, -2, -2, 0, -2], [0, -3, -3, 0, -3]))


def test_lians_form_shares_the_model_before_the_step_and_keeps_the_own_step_whole() -> None:
    """x ← W x − η g: in the first round all x are equal, so only each agent's own step shows."""
    method = make("dsgd", [3, 3, 3, 3, 3], {"lr": 3.0, "form": "lian"})
    data, path = Gradients((G,)), mixing(3, PATH)
    first = play(method, method.init(agents(4, 4, 4)), data, path)
    close(first.payload["weights"], rows([3, 3, 3, 3], [3, 3, 3, 3], [3, 3, 3, 3]))
    close(first.model, rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 0]))
    second = play(method, first.state, data, path, round=2)
    close(second.model, rows([-2, 2, 3, 3, 3], [2, -1, 2, 3, 2], [3, 2, -2, 3, -2]))


def test_the_model_before_mixing_is_what_was_sent() -> None:
    method = make("dsgd", [3, 3, 3, 3, 3], {"lr": 3.0})
    played = play(method, method.init(agents(4, 4, 4)), Gradients((G,)), mixing(3, PATH))
    close(method.unmixed_model(played.payload), rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 0]))
