"""Methods that must coincide in a corner of their options: each is a check on both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.data.digits import digits
from peermask.graph.links import Links
from peermask.run.assemble import build_simulator
from peermask.run.build import build
from peermask.run.simulator import Simulator

DIGITS = digits()
SPARSE = [0.2, 0.4, 0.6, 0.3]


def simulator(algorithm: dict[str, Any], chunk: int = 4, **changes: Any) -> Simulator:
    config = make_config(
        {
            "agents": 4,
            "batch_size": 8,
            "retention": SPARSE,
            "graph": {"name": "ring"},
            "model": {"name": "mlp", "hidden": [8]},
            "frozen": {"init": "kaiming-normal"},
            "algorithm": algorithm,
            **changes,
        }
    )
    return build_simulator(build(config, DIGITS), torch.device("cpu"), chunk=chunk, workers=1)


def models(algorithm: dict[str, Any], rounds: int = 3, **changes: Any) -> Tensor:
    """Everybody's parameters after a few rounds: [N, P]."""
    with simulator(algorithm, **changes) as playing:
        for number in range(1, rounds + 1):
            playing.play(Clock(number, rounds))
        return playing.local_models()


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


COMPLETE: dict[str, Any] = {"graph": {"name": "complete"}}
DENSE: dict[str, Any] = {"retention": 1.0, "mask": {"fc_keep": 1.0}}
DSGD_CLOSED = {"name": "dsgd", "lr": 0.1, "neighbours": "closed"}


DEAF = {"name": "mce-pl", "first_votes": "none", "lr_fine_tune": 0.0, "aggregation_gain": 0.0}
ALONE = {"agents": 1, "graph": "path", "retention": 0.3, "mask": {"fc_keep": "r"}}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_mce_pl_that_hears_nothing_is_ind_mask_bit_for_bit(momentum: float) -> None:
    learned = models({"name": "ind-mask", "momentum": momentum})
    assert torch.equal(models({**DEAF, "momentum": momentum}), learned)
    assert torch.equal(models({"name": "ind-mask"}), learned) == (momentum == 0)


def test_mce_pl_without_neighbours_is_ind_mask_bit_for_bit() -> None:
    ends = []
    for method in ({"name": "mce-pl", "first_votes": "none"}, {"name": "ind-mask"}):
        with simulator(method, chunk=1, **ALONE) as playing:
            for number in range(1, 7):
                shared = playing.play(Clock(number, 6)).shared
            ends.append(playing.tensors())
    assert torch.equal(ends[0]["scores"], ends[1]["scores"])
    assert torch.equal(ends[0]["mask"], ends[1]["mask"])
    assert shared == {}


def test_dsgd_on_the_complete_graph_is_fl_with_equal_shares() -> None:
    same(models(DSGD_CLOSED, **COMPLETE), models({"name": "fl", "lr": 0.1, "shares": "uniform"}, **COMPLETE))


def test_a_prox_term_without_weight_is_training_alone() -> None:
    alone = {"name": "ind-dense", "lr": 0.1}
    assert torch.equal(models({"name": "dsgd-prox", "lr": 0.1, "mu": 0.0}), models(alone))


@pytest.mark.parametrize("mu", [0.0, 1.0, 100.0])
def test_literal_fedprox_with_one_local_step_is_dsgd_whatever_the_pull(mu: float) -> None:
    prox = {"name": "dsgd-prox", "form": "literal", "local_steps": 1, "lr": 0.1, "mu": mu}
    same(models(prox), models({"name": "dsgd", "lr": 0.1}))


def test_personal_fedprox_is_lians_dsgd_with_lazy_mixing() -> None:
    """On the ring the open mean and Metropolis are W_mh = (I + 2 W_open) / 3, so η μ = 2/3 makes the two equal."""
    prox = {"name": "dsgd-prox", "lr": 0.1, "mu": 20 / 3}
    same(models(prox), models({"name": "dsgd", "lr": 0.1, "form": "lian"}))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "avr-weipru", "lr": 0.1},
        {"name": "par-weipru", "lr": 0.1},
        {"name": "par-weipru", "lr": 0.1, "support": "own"},
        {"name": "dis-pfl", "lr": 0.1, "drop": 0.0, "update_every": 1},
        {"name": "dis-pfl", "lr": 0.1, "drop": 0.0, "allocation": "matched"},
        {"name": "lottery-dsgd", "lr": 0.1, "prune_every": 1},
    ],
    ids=str,
)
def test_whoever_prunes_nothing_is_dsgd_with_the_closed_mean(method: dict[str, Any]) -> None:
    same(models(method, **DENSE), models(DSGD_CLOSED, **DENSE))


@pytest.mark.parametrize("regrow", ["gradient", "random"])
def test_dis_pfl_keeps_its_density_exactly(regrow: str) -> None:
    method = {"name": "dis-pfl", "lr": 0.1, "update_every": 1, "drop": 0.9, "regrow": regrow}
    seen: set[tuple[int, ...]] = set()
    with simulator(method) as playing:
        before = playing.tensors()["mask"]
        for number in range(1, 4):
            playing.play(Clock(number, 4))
            mask = playing.tensors()["mask"]
            assert not torch.equal(mask, before)
            seen.add(tuple(mask.sum(1).tolist()))
            before = mask
    assert len(seen) == 1


METHODS = [
    {"name": "mce-pl"},
    {"name": "mce-pl", "momentum": 0.5},
    {"name": "ind-mask"},
    {"name": "ind-mask", "momentum": 0.5},
    {"name": "dsgd"},
    {"name": "dsgd", "form": "lian"},
    {"name": "fl"},
    {"name": "dsgd-prox"},
    {"name": "dsgd-prox", "form": "literal"},
    {"name": "lottery-dsgd", "prune_every": 2, "accuracy_threshold": 0.0},
    {"name": "ind-weipru"},
    {"name": "avr-weipru"},
    {"name": "par-weipru"},
    {"name": "dis-pfl", "update_every": 2},
    {"name": "dis-pfl", "update_every": 2, "regrow": "random"},
    {"name": "fedmask"},
    {"name": "fedmask", "variant": "overlap"},
    {"name": "ind-dense"},
    {"name": "ind-dense", "momentum": 0.9},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_agents_computed_one_by_one_or_together_reach_the_same(method: dict[str, Any]) -> None:
    apart, together = models(method, chunk=1), models(method, chunk=4)
    # A sum in another order can move a score at the threshold: then one entry differs, and little follows.
    assert torch.isclose(apart, together, rtol=1e-3, atol=1e-4).float().mean() > 0.99


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_no_method_depends_on_the_order_of_agents(method: dict[str, Any]) -> None:
    """Turning data, draws, retentions and the ring by one place turns the result: agents are only names."""
    straight, turned = simulator(method), simulator(method)
    turn = torch.tensor([1, 2, 3, 0])
    renumber(turned, turn)
    for number in range(1, 4):
        straight.play(Clock(number, 3))
        turned.play(Clock(number, 3))
    moved = straight.local_models()[turn]
    assert torch.isclose(moved, turned.local_models(), rtol=1e-3, atol=1e-4).float().mean() > 0.99


def renumber(playing: Simulator, turn: Tensor) -> None:
    """Give every row the data, links and state of another."""
    from dataclasses import replace

    feed, mixing = playing.feeds[0], playing.mixings[0]
    order, weights = turn.tolist(), mixing.metropolis.matrix[turn][:, turn]
    playing.feeds[0] = replace(feed, samples=[feed.samples[i] for i in order], ids=tuple(feed.ids[i] for i in order))
    playing.mixings[0] = replace(
        mixing,
        links=Links.of(mixing.links.pairs[turn][:, turn]),
        metropolis=Links.of(weights > 0).weighted(weights[weights > 0].numpy()),
        shares=mixing.shares[turn],
    )
    playing.restore({name: tensor[turn] for name, tensor in playing.tensors().items()})


def test_ind_mask_learns_alone() -> None:
    with simulator({"name": "ind-mask"}, model={"name": "mlp"}) as playing:
        losses = [float(playing.play(Clock(number, 30)).losses.mean()) for number in range(1, 31)]
    assert losses[-1] < 0.7 * losses[0]
