"""DSGDProx: a pull towards the neighbours' mean, or towards where the round began."""

import networkx as nx
from worked_cases import Gradients, agents, close, make, mixing, play, rows

G = rows([1, 0, 0, 0, 0], [0, 2, 0, 0, 0])


def test_the_personal_form_pulls_towards_the_neighbours_mean_and_overwrites_nothing() -> None:
    """x_1 = −g; a = the other's x_1; x_2 = x_1 − (g + ½ (x_1 − a))."""
    method = make("dsgd-prox", [0, 0, 0, 0, 0], {"lr": 1.0, "mu": 0.5})
    data, pair = Gradients((G,)), mixing(2)
    first = play(method, method.init(agents(4, 4)), data, pair)
    close(first.model, rows([-1, 0, 0, 0, 0], [0, -2, 0, 0, 0]))
    close(first.state.anchor, rows([0, -2, 0, 0, 0], [-1, 0, 0, 0, 0]))
    second = play(method, first.state, data, pair, round=2)
    close(second.model, rows([-1.5, -1, 0, 0, 0], [-0.5, -3, 0, 0, 0]))


def test_an_agent_nobody_is_heard_by_keeps_its_anchor() -> None:
    method = make("dsgd-prox", [3, 3, 3, 3, 3], {"lr": 1.0, "mu": 0.5})
    first = play(method, method.init(agents(4, 4)), Gradients((G,)), mixing(2, nx.empty_graph(2)))
    close(first.state.anchor, rows([3, 3, 3, 3, 3], [3, 3, 3, 3, 3]))


def test_the_literal_form_pulls_back_to_the_rounds_first_model_then_mixes() -> None:
    """Two steps: −g, then −(g + ½ (−g)) = −½ g; the mean of two agents halves each."""
    method = make("dsgd-prox", [0, 0, 0, 0, 0], {"lr": 1.0, "mu": 0.5, "form": "literal"})
    played = play(method, method.init(agents(4, 4)), Gradients((G,)), mixing(2))
    close(played.payload["weights"], rows([-1.5, 0, 0, 0], [0, -3, 0, 0]))
    close(played.model, rows([-0.75, -1.5, 0, 0, 0], [-0.75, -1.5, 0, 0, 0]))
