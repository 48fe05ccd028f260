"""Rounds of accord on a layer of four weights, every number worked by hand; whom it listens to; what it equals."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
import torch
from four_weights import FROZEN, KEEP, LAYOUT, SCORES, FixedGradient, NoData, close, hear
from torch import Tensor

from peermask.algorithms.accord import Accord, Personal, State
from peermask.algorithms.contract import Agents, Clock, Setting
from peermask.compute.network import Batch
from peermask.config.file import make_config
from peermask.data.digits import digits
from peermask.graph import build_mixing
from peermask.masks.masker import Masker, MaskOptions
from peermask.run.assemble import build_simulator
from peermask.run.build import build

HAND = {
    "lr": 0.4,
    "schedule": "constant",
    "momentum": 0.5,
    "own_votes": 2,
    "pull": 0.4,
    "vote_gain": 0.6,
    "guard": 0.0,
    "weight_decay": 0.0,
    "personal_from": 0.5,
    "personal_lr": 0.25,
    "personal_pull": 0.6,
}
DIGITS = digits()


def algorithm(retentions: tuple[float, ...] = (0.5,), network: Any = None, **options: Any) -> Accord:
    masker = Masker(LAYOUT, FROZEN, MaskOptions())
    setting = Setting(network or FixedGradient(), masker, 0, retentions)  # type: ignore[arg-type]
    return Accord(Accord.Options(**{**HAND, **options}), setting)


def start() -> State:
    votes = torch.tensor([[0, 1, 1, 0]], dtype=torch.uint8)
    velocity = torch.tensor([[0.2, 0.0, 0.0, 0.2]])
    return State(SCORES, torch.tensor([[False, True, True, False]]), votes, torch.tensor([1]), KEEP, velocity)


def learned(method: Accord) -> State:
    return method.learn(start(), NoData(), Clock(1, 10))[0]


def test_learn() -> None:
    """G = (.1, .2, -.2, .1); u = ½ u + G; rms(u) = .2 and mean|z| = .25, so û = 1.25 u; z½ = z − .4 û.

    mean|z½| = .3; votes add .6 · .3 to two entries."""
    method = algorithm()
    state, loss = method.learn(start(), NoData(), Clock(1, 10))
    assert close(state.velocity, [0.2, 0.2, -0.2, 0.2])
    assert close(state.scores, [0.3, -0.4, 0.3, -0.2])
    assert method.share(state)["mask"].int().tolist() == [[0, 1, 1, 0]]
    assert loss.tolist() == [1.0]


def test_absolute_steps_follow_the_gradient_itself() -> None:
    """z½ = z − .4 u."""
    assert close(learned(algorithm(step="absolute")).scores, [0.32, -0.38, 0.28, -0.18])


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize(("rounds", "lr"), [(20, 0.1), (80, 0.1), (400, 0.02)])
def test_the_step_size_follows_from_the_number_of_batches(rounds: int, lr: float, batches: int) -> None:
    """min(.1, 8 / batches), and z½ = z − lr û."""
    state, _ = algorithm(lr="auto").learn(start(), NoData(), Clock(1, rounds // batches, batches=batches))
    assert close(state.scores, [0.4 - 0.25 * lr, -0.3 - 0.25 * lr, 0.2 + 0.25 * lr, -0.1 - 0.25 * lr])


def test_fuse() -> None:
    """Two own votes and two heard: n = (½, ¾, ¾, 0), n − m½ = (½, −¼, −¼, 0); each moves by .4 · .3 of that."""
    method = algorithm()
    state = method.fuse(learned(method), *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(1, 10))
    assert close(state.scores, [0.36, -0.37, 0.27, -0.2])
    assert state.mask.int().tolist() == [[1, 1, 0, 0]]  # |z| + .18 n = (.45, .505, .405, .2)
    assert state.votes.tolist() == [[2, 3, 3, 0]]
    assert state.voters.tolist() == [4]
    assert state.proposal is None
    assert method.local_model(state).tolist() == [[1.0, -1.0, 0.0, 0.0]]  # the personal mask has not started


def test_own_votes_are_at_most_as_many_as_those_heard() -> None:
    """One neighbour, so one own vote: n = (½, ½, 1, 0)."""
    method = algorithm()
    state = method.fuse(learned(method), *hear([1, 0, 1, 0]), Clock(1, 10))
    assert state.votes.tolist() == [[1, 1, 2, 0]]
    assert state.voters.tolist() == [2]


def test_fuse_without_own_votes() -> None:
    """n = (1, ½, ½, 0), n − m½ = (1, −½, −½, 0)."""
    method = algorithm(own_votes=0)
    state = method.fuse(learned(method), *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(1, 10))
    assert close(state.scores, [0.42, -0.34, 0.24, -0.2])
    assert state.votes.tolist() == [[2, 1, 1, 0]]
    assert state.voters.tolist() == [2]


def test_own_votes_count_as_new_messages_where_messages_count_by_age() -> None:
    """The older of two masks counts once, the newer twice, and so would each own vote; together at most as the two."""
    method = algorithm()
    received, mixing = hear([1, 0, 1, 0], [1, 1, 0, 0])
    state = method.fuse(learned(method), received, mixing.weigh_by_age([2, 1], 2, 100), Clock(1, 10))
    assert state.votes.tolist() == [[3, 1 + 3, 2 + 3, 0]]
    assert state.voters.tolist() == [3 + 3]


def changing(**options: Any) -> Accord:
    masker = Masker(LAYOUT, FROZEN, MaskOptions())
    setting = Setting(FixedGradient(), masker, 0, (0.5,), links_change=True)  # type: ignore[arg-type]
    return Accord(Accord.Options(**{**HAND, **options}), setting)


def test_where_links_change_earlier_votes_count_by_their_age() -> None:
    """A vote counts 16, in the next round 8, then 4: two rounds with one neighbour each, and one with none."""
    method = changing(memory=0.5)
    begun = method.init(Agents((0,), KEEP, torch.tensor([0.5])))
    assert begun.heard is not None
    assert begun.heard.votes.dtype == begun.votes.dtype == torch.int16
    state = replace(learned(method), heard=begun.heard, votes=begun.votes, voters=begun.voters)
    state = method.fuse(state, *hear([1, 0, 1, 0]), Clock(1, 10))
    assert state.heard is not None
    assert state.heard.votes.tolist() == [[16, 0, 16, 0]]
    assert state.votes.tolist() == [[16, 16, 16 + 16, 0]]  # with an own vote for (0, 1, 1, 0), not two
    assert state.voters.tolist() == [32]
    proposal = torch.tensor([[True, True, False, False]])
    state = method.fuse(replace(state, proposal=proposal), *hear([1, 1, 0, 0]), Clock(2, 10))
    assert state.heard is not None
    assert state.heard.votes.tolist() == [[24, 16, 8, 0]]
    assert state.heard.voters.tolist() == [24]
    assert state.voters.tolist() == [48]
    nobody, silence = build_mixing(nx.empty_graph(1), [1]), {"mask": torch.ones(1, 4, dtype=torch.bool)}
    state = method.fuse(replace(state, proposal=proposal), silence, nobody, Clock(3, 10))
    assert state.votes.tolist() == [[12 + 12, 8 + 12, 4, 0]]
    assert state.voters.tolist() == [12 + 12]


@pytest.mark.parametrize(("agents", "dtype"), [(63, torch.int16), (64, torch.int32)])
def test_votes_by_age_have_room(agents: int, dtype: torch.dtype) -> None:
    """16 · 16 · N / (1 − ρ), before it is divided, and the own votes."""
    masker = Masker(LAYOUT, FROZEN, MaskOptions())
    setting = Setting(FixedGradient(), masker, 0, (0.5,) * agents, links_change=True)  # type: ignore[arg-type]
    state = Accord(Accord.Options(), setting).init(Agents((0,), KEEP, torch.tensor([0.5])))
    assert state.votes.dtype == dtype


def test_without_memory_only_this_round_counts() -> None:
    assert changing(memory=0.0).init(Agents((0,), KEEP, torch.tensor([0.5]))).heard is None


def test_many_votes_have_room() -> None:
    """255 fit a byte, 256 do not."""
    two_heard = hear([1, 0, 1, 0], [1, 1, 0, 0])[1]
    assert two_heard.count_dtype_with(252) == torch.uint8
    assert two_heard.count_dtype_with(253) == torch.int16
    assert two_heard.weigh_by_age([2, 1], 2, 100).count_dtype_with(78) == torch.int16


def test_the_personal_mask() -> None:
    """Its step is a quarter, .1: z' − .1 û = (.375, −.325, .225, −.125), whose mean is .2625.

    n₀ = (1, 0, 1, 0) adds .6 · .2625: (.5325, .325, .3825, .125) keeps the first and third. Nine samples: γ' = .6 / 3;
    n − that = (−1, 1, 0, 0) times .2 · .2625."""
    method, first_votes = algorithm(), torch.tensor([[1, 0, 1, 0]], dtype=torch.uint8)
    mask = torch.tensor([[False, True, True, False]])
    personal = Personal(SCORES, mask, start().velocity, first_votes, torch.tensor([1]))
    state, _ = method.learn(replace(start(), personal=personal), NoData(), Clock(6, 10))
    assert state.personal is not None
    assert close(state.personal.velocity, [0.2, 0.2, -0.2, 0.2])
    assert close(state.personal.scores, [0.3225, -0.3775, 0.225, -0.125])
    assert state.personal.mask.int().tolist() == [[1, 0, 1, 0]]  # (.48, .3775, .3825, .125)
    assert state.personal.votes is first_votes
    fused = method.fuse(state, *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(6, 10))
    assert fused.personal is state.personal
    assert method.local_model(fused).tolist() == [[1.0, 0.0, 2.0, 0.0]]
    assert fused.mask.int().tolist() == [[1, 1, 0, 0]]  # the agreed one is as without it


def is_agreed(state: Any) -> bool:
    """The personal tensors are the very same as the agreed ones, but for momentum."""
    same = ("scores", "mask", "votes", "voters")
    return (
        all(getattr(state.personal, name) is getattr(state, name) for name in same)
        and not state.personal.velocity.any()
    )


def test_the_personal_mask_learns_from_half_of_a_batch() -> None:
    """Rounded up: three of five."""
    sizes = []

    class Noted(FixedGradient):
        def gradient(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            sizes.append((batch.inputs.shape[1], batch.targets.shape[1]))
            return super().gradient(params, batch)

    method = algorithm(network=Noted())
    fused = method.fuse(learned(method), *hear([1, 0, 1, 0]), Clock(5, 10))
    method.learn(fused, NoData(), Clock(6, 10))
    assert sizes == [(5, 5), (5, 5), (3, 3)]


def test_the_personal_mask_starts_as_the_agreed_one() -> None:
    method = algorithm()
    fused = method.fuse(learned(method), *hear([1, 0, 1, 0], [1, 1, 0, 0]), Clock(5, 10))
    assert is_agreed(fused)


def test_a_personal_mask_changes_nothing_that_is_sent() -> None:
    with_it, without = states("accord", 12, personal_lr=1.0), states("accord", 12, personal_from="never")
    assert all(torch.equal(with_it[name], tensor) for name, tensor in without.items())
    assert not torch.equal(with_it["personal.mask"], with_it["mask"])


def test_who_joins_starts_from_what_neighbours_keep() -> None:
    """n = (0, 0, 1, ½), mean|z| = .25; then mean|z| = .34375, and with the votes (.4, .3, .65625, .328125)."""
    method = algorithm()
    state = method.join(start(), *hear([0, 0, 1, 1], [0, 0, 1, 0]))
    assert close(state.scores, [0.4, -0.3, 0.45, -0.225])
    assert state.mask.int().tolist() == [[1, 0, 1, 0]]
    assert state.votes.tolist() == [[0, 0, 2, 1]]
    assert state.voters.tolist() == [2]
    assert is_agreed(state)


NOBODY = {"mask": torch.ones(1, 4, dtype=torch.bool)}, build_mixing(nx.empty_graph(1), [1]), Clock(1, 10)


def test_who_has_never_heard_anybody_has_no_votes() -> None:
    method = algorithm()
    state = replace(learned(method), voters=torch.tensor([0]))
    fused = method.fuse(state, *NOBODY)
    assert torch.equal(fused.scores, state.scores)
    assert fused.voters.tolist() == [0]
    assert not fused.votes.any()


@pytest.mark.parametrize(("own_votes", "mask"), [(2, [[0, 1, 1, 0]]), (0, [[1, 1, 0, 0]])])
def test_who_hears_nobody_any_more_is_not_pulled_and_keeps_its_mask(own_votes: int, mask: list[list[int]]) -> None:
    """n = m½, so |z½| + .18 n = (.3, .58, .48, .2); without own votes n = 0, and ties go to the lower index."""
    method = algorithm(own_votes=own_votes)
    state = learned(method)
    for _ in range(2):  # also in the next round without messages
        fused = method.fuse(state, *NOBODY)
        assert torch.equal(fused.scores, state.scores)
        assert fused.mask.int().tolist() == mask
        state = replace(fused, proposal=state.proposal)


def states(name: str, rounds: int = 4, changes: dict[str, Any] | None = None, **options: Any) -> dict[str, Tensor]:
    common = {"lr": 0.05, "step": "relative", "schedule": "cosine", "momentum": 0.9, "weight_decay": 0.001}
    config = make_config(
        {
            "agents": 4,
            "batch_size": 8,
            "retention": 0.4,
            "graph": {"name": "ring"},
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": {"name": name, **common, **options},
            **(changes or {}),
        }
    )
    with build_simulator(build(config, DIGITS), torch.device("cpu"), workers=1) as playing:
        for number in range(1, rounds + 1):
            playing.play(Clock(number, rounds))
        return playing.tensors()


@pytest.mark.parametrize("step", ["absolute", "relative"])
def test_a_single_agent_learns_as_ind_mask_does_bit_for_bit(step: str) -> None:
    alone: dict[str, Any] = {"agents": 1, "graph": {"name": "complete"}, "partition": {"name": "iid"}}
    own, other = states("accord", 4, alone, step=step), states("ind-mask", 4, alone, step=step)
    assert all(torch.equal(own[name], other[name]) for name in ("scores", "mask", "velocity"))


def test_listening_makes_a_difference() -> None:
    assert not torch.equal(states("accord")["scores"], states("ind-mask")["scores"])


def test_all_keep_what_the_smallest_retention_allows() -> None:
    table: dict[str, Any] = {"agents": 3, "retention": [0.5, 0.2, 0.4], "model": {"name": "mlp", "hidden": [8]}}
    common, own = (build(make_config({**table, "algorithm": name}), DIGITS).agents for name in ("accord", "mce-pl"))
    assert common.keep.tolist() == [own.keep[1].tolist()] * 3
    assert torch.equal(common.retention, own.retention)


class Exact:
    """A network whose gradients are multiples of small powers of two, so that no CPU rounds anything."""

    layout = LAYOUT

    def gradient(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        pattern = torch.tensor([0.5, -0.25, 0.25, -0.5])
        return 0.25 * params + pattern, torch.ones(len(params))


def test_without_what_is_new_it_is_the_method_of_version_1() -> None:
    """Three agents in a row, three rounds; the digest was recorded with version 1.0."""
    version_1: dict[str, Any] = {"step": "absolute", "own_votes": 0, "personal_from": "never"}
    method = algorithm(network=Exact(), lr=0.5, pull=0.5, vote_gain=0.5, **version_1)
    scores = torch.tensor([[0.5, -0.375, 0.25, -0.125], [0.25, -0.5, 0.125, -0.375], [0.125, -0.25, 0.5, -0.375]])
    votes, nobody = torch.zeros(3, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    keep = KEEP.repeat(3, 1)
    state = State(scores, method.masker.mask(scores, keep), votes, nobody, keep, torch.zeros(3, 4))
    mixing, digest = build_mixing(nx.path_graph(3), [1, 1, 1]), hashlib.sha256()
    for number in range(1, 4):
        state, _ = method.learn(state, NoData(), Clock(number, 3))
        state = method.fuse(state, method.share(state), mixing, Clock(number, 3))
        for tensor in (state.scores, state.mask, state.votes, state.velocity):
            assert tensor is not None
            digest.update(tensor.contiguous().numpy().tobytes())
    assert digest.hexdigest() == "4cc9204fefb4c3d7517c96fd075b60096ddc566c8142fe8ba659e9b89c676a72"


def test_a_far_mask_is_not_believed() -> None:
    """m½ = (0, 1, 1, 0): two equal masks are at distance 0 and the opposite one at 2."""
    method = algorithm(guard=1.5, own_votes=0)
    fused = method.fuse(learned(method), *hear([0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]), Clock(1, 10))
    assert fused.voters.tolist() == [2]
    assert fused.votes.tolist() == [[0, 2, 2, 0]]
