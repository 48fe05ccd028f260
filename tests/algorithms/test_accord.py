"""One round of accord on a layer of four weights, every number worked by hand; whom it listens to; what it equals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
import torch
from four_weights import FROZEN, KEEP, LAYOUT, SCORES, FixedGradient, NoData, close, hear

from peermask.algorithms.accord import Accord, State
from peermask.algorithms.contract import Agents, Clock, Setting
from peermask.data.digits import digits
from peermask.errors import ConfigError
from peermask.experiment.assemble import build_simulator
from peermask.experiment.build import build
from peermask.experiment.config_file import make_config
from peermask.graph import Mixing, build_mixing
from peermask.masks.budget import MaskOptions
from peermask.masks.masker import Masker

HAND = {
    "lr": 0.5,
    "schedule": "constant",
    "momentum": 0.5,
    "pull": 0.4,
    "vote_gain": 0.6,
    "guard": 0.0,
    "weight_decay": 0.0,
}
DIGITS = digits()


def algorithm(retentions: tuple[float, ...] = (0.5,), **options: Any) -> Accord:
    masker = Masker(LAYOUT, FROZEN, MaskOptions())
    setting = Setting(FixedGradient(), masker, 0, retentions)  # type: ignore[arg-type]
    return Accord(Accord.Options(**{**HAND, **options}), setting)


def start() -> State:
    votes = torch.tensor([[0, 1, 1, 0]], dtype=torch.uint8)
    velocity = torch.tensor([[0.2, 0.0, 0.0, 0.0]])
    return State(SCORES, torch.tensor([[False, True, True, False]]), votes, torch.tensor([1]), KEEP, velocity)


def test_learn() -> None:
    """G = (.1, .2, -.2, .1); u = ½ u + G; z½ = z − ½ u; mean|z½| = .2875; votes add .6 · .2875 to two entries."""
    method = algorithm()
    state, loss = method.learn(start(), NoData(), Clock(1, 10))
    assert close(state.velocity, [0.2, 0.2, -0.2, 0.1])
    assert close(state.scores, [0.3, -0.4, 0.3, -0.15])
    assert method.share(state)["mask"].int().tolist() == [[0, 1, 1, 0]]
    assert loss.tolist() == [1.0]


def test_fuse() -> None:
    """n = (1, ½, ½, 0), n − m½ = (1, −½, −½, 0); each moves by .4 · .2875 of that; the first weight enters the mask."""
    method = algorithm()
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    state = method.fuse(state, *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(1, 10))
    assert close(state.scores, [0.415, -0.3425, 0.2425, -0.15])
    assert state.mask.int().tolist() == [[1, 1, 0, 0]]  # |z| + .1725 n = (.5875, .42875, .32875, .15)
    assert state.votes.tolist() == [[2, 1, 1, 0]]
    assert state.voters.tolist() == [2]
    assert state.proposal is None
    assert method.local_model(state).tolist() == [[1.0, -1.0, 0.0, 0.0]]


def test_who_joins_starts_from_what_neighbours_keep() -> None:
    """n = (0, 0, 1, ½), mean|z| = .25; then mean|z| = .34375, and with the votes (.4, .3, .65625, .328125)."""
    method = algorithm()
    state = method.join(start(), *hear([0, 0, 1, 1], [0, 0, 1, 0]))
    assert close(state.scores, [0.4, -0.3, 0.45, -0.225])
    assert state.mask.int().tolist() == [[1, 0, 1, 0]]
    assert state.votes.tolist() == [[0, 0, 2, 1]]
    assert state.voters.tolist() == [2]


def test_who_hears_nobody_is_not_pulled() -> None:
    method = algorithm()
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    nobody = build_mixing(nx.empty_graph(1), [1])
    fused = method.fuse(state, {"mask": torch.ones(1, 4, dtype=torch.bool)}, nobody, Clock(1, 10))
    assert torch.equal(fused.scores, state.scores)
    assert fused.voters.tolist() == [0]


def states(name: str, rounds: int = 4, **changes: Any) -> dict[str, torch.Tensor]:
    config = make_config(
        {
            "agents": 4,
            "batch_size": 8,
            "retention": 0.4,
            "graph": {"name": "ring"},
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": {"name": name, "lr": 0.2, "schedule": "cosine", "momentum": 0.9, "weight_decay": 0.001},
            **changes,
        }
    )
    with build_simulator(build(config, DIGITS), torch.device("cpu"), workers=1) as playing:
        for number in range(1, rounds + 1):
            playing.play(Clock(number, rounds))
        return playing.tensors()


def test_a_single_agent_learns_as_ind_mask_does_bit_for_bit() -> None:
    alone: dict[str, Any] = {"agents": 1, "graph": {"name": "complete"}, "partition": {"name": "iid"}}
    own, other = states("accord", **alone), states("ind-mask", **alone)
    assert all(torch.equal(own[name], other[name]) for name in ("scores", "mask", "velocity"))


def test_listening_makes_a_difference() -> None:
    assert not torch.equal(states("accord")["scores"], states("ind-mask")["scores"])


FOUR = Agents((0, 1, 2, 3), torch.tensor([[1], [2], [3], [4]]), torch.tensor([0.25, 0.5, 0.75, 1.0]))


def test_agents_take_the_highest_level_they_can_carry() -> None:
    method = algorithm((0.25, 0.5, 0.75, 1.0), levels="two")  # two of the four can carry 0.75
    assert method.levels == (0.25, 0.75)
    assert method.init(FOUR).keep.tolist() == [[1], [1], [3], [3]]


def test_agents_listen_to_their_own_level_alone() -> None:
    method = algorithm((0.25, 0.75, 0.75, 0.75), levels="two")
    state, _ = method.learn(replace(start(), keep=torch.tensor([[3]])), NoData(), Clock(1, 10))
    dense, sparse = [1, 1, 0, 1], [1, 0, 0, 0]
    fused = method.fuse(state, *hear(dense, sparse), Clock(1, 10))
    assert fused.voters.tolist() == [1]
    assert fused.votes.tolist() == [dense]


def test_nested_levels_all_learn_at_the_lower_and_those_who_can_at_the_higher_too() -> None:
    method = algorithm((0.25, 0.25, 0.75, 1.0))
    begun = method.init(FOUR)
    assert begun.keep.tolist() == [[1]] * 4
    assert begun.above is not None
    assert begun.above.able is not None
    assert begun.above.able.tolist() == [False, False, True, True]
    assert method.local_model(begun).count_nonzero(1).tolist() == [1, 1, 3, 3]
    opening = method.opening(FOUR)
    assert opening["mask"].sum(1).tolist() == [1] * 4
    assert opening["above"].sum(1).tolist() == [0, 0, 3, 3]
    least, most = method.mask_counts(FOUR)["above"]
    assert least.tolist() == most.tolist() == [[0], [0], [3], [3]]


def one_of(retention: float) -> tuple[Accord, State]:
    method = algorithm((0.25, 0.75, 0.75))
    state = method.init(Agents((0,), torch.tensor([[1]]), torch.tensor([retention])))
    return method, method.learn(state, NoData(), Clock(1, 10))[0]


def received(lower: list[list[int]], above: list[list[int]]) -> tuple[dict[str, torch.Tensor], Mixing]:
    messages, mixing = hear(*lower)
    return {**messages, "above": hear(*above)[0]["mask"]}, mixing


def test_nested_levels_hear_everybody_below_and_their_own_above() -> None:
    method, state = one_of(0.75)
    sent = method.share(state)
    assert [sent[name].sum().item() for name in ("mask", "above")] == [1, 3]
    fused = method.fuse(state, *received([[1, 0, 0, 0], [0, 1, 0, 0]], [[1, 1, 0, 1], [0, 0, 0, 0]]), Clock(1, 10))
    assert fused.voters.tolist() == [2]
    assert fused.above is not None
    assert fused.above.voters.tolist() == [1]  # an empty mask is no vote
    assert fused.above.votes.tolist() == [[1, 1, 0, 1]]
    assert method.local_model(fused).count_nonzero().item() == 3


def test_nested_levels_spare_who_cannot_carry_the_higher() -> None:
    method, state = one_of(0.25)
    sent = method.share(state)
    assert [sent[name].sum().item() for name in ("mask", "above")] == [1, 0]
    fused = method.fuse(state, *received([[1, 0, 0, 0]], [[1, 1, 0, 1]]), Clock(1, 10))
    assert fused.voters.tolist() == [1]
    assert fused.above is not None
    assert state.above is not None
    assert torch.equal(fused.above.scores, state.above.scores)
    assert method.local_model(fused).count_nonzero().item() == 1


def test_nested_levels_learn_at_the_lower_as_if_it_were_the_only_one() -> None:
    several: dict[str, Any] = {"retention": [0.2, 0.5, 0.5, 0.3]}
    nested = states("accord", algorithm={"name": "accord", "levels": "nested"}, **several)
    lowest = states("accord", algorithm={"name": "accord", "levels": "smallest"}, **several)
    assert all(torch.equal(nested[name], tensor) for name, tensor in lowest.items())
    assert {name for name in nested if "." not in name} == set(lowest)


def test_a_far_mask_is_not_believed() -> None:
    """m½ = (0, 1, 1, 0): two equal masks are at distance 0 and the opposite one at 2."""
    method = algorithm(guard=1.5)
    state, _ = method.learn(start(), NoData(), Clock(1, 10))
    fused = method.fuse(state, *hear([0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]), Clock(1, 10))
    assert fused.voters.tolist() == [2]
    assert fused.votes.tolist() == [[0, 2, 2, 0]]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("pull", -0.1, "greater than or equal to 0"),
        ("vote_gain", -1, "greater than or equal"),
        ("guard", 0.5, "at least 1"),
    ],
)
def test_options_out_of_range_are_one_line(option: str, value: float, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm\.{option} = .*{says}"):
        make_config({"algorithm": {"name": "accord", option: value}})
