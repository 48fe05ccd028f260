"""Ditto: a personal model beside the one that neighbours average."""

from __future__ import annotations

import networkx as nx
import torch
from worked_cases import Gradients, agents, close, make, mixing, play, rows

G = rows([1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1])
PATH = nx.path_graph(3)


def test_the_personal_model_is_pulled_towards_the_agreed_one() -> None:
    """After a round agent 0 has x' = (0, 3, ...) and x = (1, 2, ...); then x' − 3 (g + (x' − x) / 3) = (−2, 2, ...)."""
    method, data, path = (
        make("ditto", [3, 3, 3, 3, 3], {"lr": 3.0, "closeness": 1 / 3}),
        Gradients((G,)),
        mixing(3, PATH),
    )
    first = play(method, method.init(agents(4, 4, 4)), data, path)
    close(first.model, rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 0]))
    close(first.state.agreed, rows([1, 2, 3, 3, 3], [2, 2, 2, 3, 2], [3, 2, 1, 3, 1]))
    second = play(method, first.state, data, path, round=2)
    close(second.model[:1], rows([-2, 2, 3, 3, 3]))


def test_it_sends_what_dsgd_sends_and_without_the_pull_learns_alone() -> None:
    ditto, dsgd = (make(name, [3] * 5, {"lr": 0.5, "momentum": 0.5}) for name in ("ditto", "dsgd"))
    alone, other = make("ditto", [3] * 5, {"lr": 0.5, "closeness": 0.0}), make("ind-dense", [3] * 5, {"lr": 0.5})
    states = [method.init(agents(4, 4, 4)) for method in (ditto, dsgd, alone, other)]
    for number in (1, 2, 3):
        played = [
            play(method, state, Gradients((G,)), mixing(3, PATH), round=number)
            for method, state in zip((ditto, dsgd, alone, other), states, strict=True)
        ]
        assert torch.equal(played[0].payload["weights"], played[1].payload["weights"])
        close(played[2].model, played[3].model)
        states = [one.state for one in played]
