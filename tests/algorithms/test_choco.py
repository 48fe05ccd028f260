"""CHOCO-SGD: the largest changes of models, mixed as public copies."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from worked_cases import Gradients, agents, close, make, mixing, play, rows

from peermask.config.file import make_config
from peermask.errors import NodeError
from peermask.fleet.fleet import new_fleet
from peermask.fleet.roster import add_agent

G = rows([1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1])
PATH = nx.path_graph(3)  # agent 1 hears both others; W = [[2 1 0] [1 1 1] [0 1 2]] / 3


def test_two_rounds_with_one_of_five_entries() -> None:
    """x½ − x̂ of agent 2 is (0, 0, −3, 0, −3): on a tie the first is sent, and the other in the next round."""
    method = make("choco", [3, 3, 3, 3, 3], {"lr": 3.0, "topk": 0.2, "consensus": 0.5})
    data, path = Gradients((G,)), mixing(3, PATH)
    first = play(method, method.init(agents(4, 4, 4)), data, path)
    close(first.payload["weights"], rows([-3, 0, 0, 0], [0, -3, 0, 0], [0, 0, -3, 0]))
    close(first.payload["rest"], rows([0], [0], [0]))
    close(first.state.public, rows([0, 3, 3, 3, 3], [3, 0, 3, 3, 3], [3, 3, 0, 3, 3]))
    close(first.state.mixed, rows([1, 2, 3, 3, 3], [2, 2, 2, 3, 3], [3, 2, 1, 3, 3]))
    close(first.model, rows([0.5, 2.5, 3, 3, 3], [2.5, 1, 2.5, 3, 3], [3, 2.5, 0.5, 3, 0]))
    second = play(method, first.state, data, path, round=2)
    close(second.payload["rest"], rows([0], [0], [-6]))
    close(second.payload["weights"][2:], rows([0, 0, 0, 0]))


def test_zeros_in_a_message_have_no_sign() -> None:
    """-0.0 would be sent as a value."""
    method = make("choco", [3, 3, 3, 3, 3], {"lr": 3.0, "topk": 0.2})
    payload = play(method, method.init(agents(4, 4, 4)), Gradients((G,)), mixing(3, PATH)).payload
    assert int((payload["weights"].view(torch.int32) != 0).sum()) == 3


def test_sending_everything_and_mixing_fully_is_dsgd() -> None:
    choco = make("choco", [3, 3, 3, 3, 3], {"lr": 0.7, "topk": 1.0, "consensus": 1.0, "momentum": 0.5})
    dsgd = make("dsgd", [3, 3, 3, 3, 3], {"lr": 0.7, "momentum": 0.5})
    states = [method.init(agents(4, 4, 4)) for method in (choco, dsgd)]
    for number in (1, 2, 3):
        played = [
            play(method, state, Gradients((G,)), mixing(3, PATH), round=number)
            for method, state in zip((choco, dsgd), states, strict=True)
        ]
        close(played[0].model, played[1].model)
        states = [one.state for one in played]


def test_public_copies_are_what_receivers_have_added_up() -> None:
    """s of an agent is the mean of its neighbours' public copies in every round."""
    method, path = make("choco", [3, 3, 3, 3, 3], {"lr": 1.0, "topk": 0.4}), mixing(3, PATH)
    state = method.init(agents(4, 4, 4))
    for number in range(1, 6):
        state = play(method, state, Gradients((G,)), path, round=number).state
        close(state.mixed, path.metropolis_mean(state.public))


def test_a_fleet_must_wait_for_every_message() -> None:
    config = make_config({"agents": 4, "rounds": 2, "retention": 0.3, "algorithm": "choco"})
    with pytest.raises(NodeError, match="missing = 'last': choco needs every message; set it to 'wait'"):
        new_fleet(config)
    with pytest.raises(NodeError, match="no agent can be added"):
        add_agent(new_fleet(config, missing="wait"), "host")
