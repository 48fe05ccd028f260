"""Graphs that change, in whole runs, against a plain implementation: who heard what of whom, in dictionaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import Small
from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.errors import PeermaskError
from peermask.fleet.fleet import new_fleet
from peermask.graph import build_mixing
from peermask.graph.links import Links
from peermask.run.assemble import assemble, openings
from peermask.run.build import Experiment, build
from peermask.run.cuda_graphs import tensors_of
from peermask.run.execution import Execution
from peermask.run.ledger import LINKS, LinkHistories, shards_of
from peermask.run.runner import run_experiment
from peermask.store.checkpoint import hash_tensors
from peermask.store.table import read_rows
from peermask.wire import FrameHeader, Schema, encode_frame
from peermask.wire.frame import history_after
from peermask.wire.history import History
from peermask.wire.mailbox import history_of_opening

CPU = Execution(device="cpu")
SCHEDULES: list[dict[str, Any]] = [
    {"name": "redrawn", "every": 2},
    {"name": "matching"},
    {"name": "matching", "among": "graph", "every": 3},
    {"name": "one-peer-exponential"},
]
FIVE = {"agents": 5, "rounds": 7, "retention": 0.4, "graph": {"name": "erdos-renyi", "p": 0.5}}


def heard_in(experiment: Experiment, round: int) -> dict[int, list[int]]:
    """Receiver -> senders."""
    return {i: senders.tolist() for i, senders in enumerate(experiment.schedule.links(round))}


def played(experiment: Experiment) -> tuple[list[Any], dict[tuple[int, int], int]]:
    """States after all rounds, and the bytes of every agent and round: really encoded, link by link."""
    config = experiment.config
    algorithm, feed = assemble(experiment, torch.device("cpu"))
    everyone = range(config.agents)
    states = [algorithm.init(experiment.agents.rows(slice(i, i + 1))) for i in everyone]
    run_id, sizes = bytes(8), experiment.network.layout.sizes
    first = openings(experiment, experiment.agents)
    known: dict[tuple[int, int], History | None] = {}  # receiver, sender
    sent: dict[tuple[int, int], int] = {}
    for number in range(1, config.rounds + 1):
        clock = Clock(number, config.rounds)
        states = [algorithm.learn(states[i], feed.rows(slice(i, i + 1)), clock)[0] for i in everyone]
        shared = [algorithm.share(state) for state in states]
        rows = [{name: leaf[0].numpy().copy() for name, leaf in payload.items()} for payload in shared]
        heard, fused = heard_in(experiment, number), []
        for i in everyone:
            columns = sorted([i, *heard[i]])
            received = {name: torch.cat([shared[j][name] for j in columns]) for name in shared[0]}
            mixing = build_mixing(experiment.schedule.links(number), experiment.samples.sizes)
            mixing = mixing.rows(slice(i, i + 1)).restrict(torch.tensor(columns))
            fused.append(algorithm.fuse(states[i], received, mixing, clock))
            for j in heard[i]:
                schema = Schema.of(rows[j], sizes)
                if (i, j) not in known:
                    opening = {name: leaf[j].numpy() for name, leaf in first.items()}
                    known[i, j] = history_of_opening(run_id, j, schema, opening) if opening else None
                held = known[i, j]
                frame = encode_frame(FrameHeader(run_id, j, number, held.name if held else None), rows[j], schema, held)
                known[i, j] = history_after(frame, number, rows[j], schema, held)
                sent[number, j] = sent.get((number, j), 0) + len(frame)
        states = fused
    return states, sent


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: "-".join(map(str, each.values())))
@pytest.mark.parametrize("algorithm", ["mce-pl", "accord", "dsgd", "dis-pfl"])
def test_a_run_equals_a_plain_one(small: Small, tmp_path: Path, schedule: dict[str, Any], algorithm: str) -> None:
    config = small(**FIVE, schedule=schedule, algorithm=algorithm)
    result = run_experiment(config, tmp_path / "run", execution=CPU)
    states, sent = played(build(config))
    rows = read_rows(result.folder.traffic)
    counted = {
        (int(row["round"]), int(row["agent"])): round(int(row["links"]) * float(row["coded_bytes"])) for row in rows
    }
    assert {key: size for key, size in counted.items() if size} == sent
    assert result.sent_bytes == sum(sent.values())
    if algorithm in ("mce-pl", "accord"):
        each = [tensors_of(state) for state in states]
        assert hash_tensors({name: torch.cat([one[name] for one in each]) for name in each[0]}) == result.hash
    else:
        models = torch.stack([torch.cat([p.flatten() for p in m.parameters()]) for m in result.local_models()])
        plain = torch.cat([state.params for state in states])
        torch.testing.assert_close(plain.sort(1).values, models.sort(1).values, rtol=1e-4, atol=1e-5)


def test_a_graph_that_is_never_redrawn_is_one_that_stays(small: Small, tmp_path: Path) -> None:
    """To the hash and to the byte, although bytes are counted link by link."""
    stays = run_experiment(small(**FIVE), tmp_path / "stays", execution=CPU)
    redrawn = small(**FIVE, schedule={"name": "redrawn", "every": 7})
    once = run_experiment(redrawn, tmp_path / "once", execution=CPU)
    assert once.hash == stays.hash
    assert read_rows(once.folder.traffic) == read_rows(stays.folder.traffic)


@pytest.mark.parametrize("schedule", [{"name": "matching"}, {"name": "one-peer-exponential"}])
def test_an_agent_sends_one_message_a_round(small: Small, tmp_path: Path, schedule: dict[str, Any]) -> None:
    rows = read_rows(run_experiment(small(rounds=4, schedule=schedule), tmp_path / "run", execution=CPU).folder.traffic)
    assert {row["links"] for row in rows} == {"1"}
    assert len(rows) == 16


def test_a_receiver_forgets_who_was_heard_longest_ago() -> None:
    """Of three senders it remembers two; the first is then heard as if for the first time."""
    histories = LinkHistories(remembered=2)
    mask = torch.zeros(4, 64, dtype=torch.bool)
    mask[:, ::3] = True
    kinds = []
    for sender in (1, 2, 1, 3, 2, 1):  # 3 takes the place of 2, then 2 that of 1, which was heard before 3
        links = make_links(0, sender)
        kinds.append(int(histories.cost({"mask": mask}, links, (64,)).kind[sender]))
        assert len(histories.by_receiver[0]) <= 2
    assert kinds == [0, 0, 1, 0, 0, 0]
    again = LinkHistories(remembered=2)
    again.restore(histories.tensors(), {"mask": mask}, (64,))
    assert list(again.by_receiver[0]) == list(histories.by_receiver[0]) == [2, 1]


def test_histories_of_two_halves_are_those_of_the_whole() -> None:
    """Each counts the messages of its own agents; the second has nothing to save while nobody has heard them."""
    generator = torch.Generator().manual_seed(0)
    halves, whole = [LinkHistories(first=first, remembered=2) for first in (0, 2)], LinkHistories(remembered=2)
    shards = [slice(0, 2), slice(2, 4)]
    for links in ([(2, 0), (3, 1)], [(0, 2), (1, 2), (2, 1), (3, 0)], [(0, 1), (0, 2), (0, 3), (1, 0)]):
        mask = torch.rand(4, 64, generator=generator) < 0.4
        receivers, senders = np.array(links).T
        round_links = Links.between(receivers, senders, 4)
        cost = whole.cost({"mask": mask}, round_links, (64,))
        each = [half.cost({"mask": mask[part]}, round_links, (64,)) for half, part in zip(halves, shards, strict=True)]
        assert torch.cat([one.coded_bytes for one in each]).equal(cost.coded_bytes)
        assert torch.cat([one.kind for one in each]).equal(cost.kind)
        saved, parts = whole.tensors(), [half.tensors() for half in halves]
        for name, rows in saved.items():
            together = parts[0][name] if name == LINKS else torch.cat([part[name] for part in parts])
            assert torch.equal(together, rows), name
        counts = [part.stop - part.start for part in shards_of(saved[LINKS], shards)]
        assert counts == [len(part["mask"]) for part in parts]
        halves = [LinkHistories(first=first, remembered=2) for first in (0, 2)]
        for half, part, kept in zip(halves, shards, parts, strict=True):
            half.restore(kept, {"mask": mask[part]}, (64,))


def make_links(receiver: int, sender: int) -> Links:
    return Links.between(np.array([receiver]), np.array([sender]), 4)


def test_a_fleet_has_the_links_of_all_rounds(small: Small) -> None:
    fleet = new_fleet(small(agents=8, rounds=4, retention=0.3, schedule="one-peer-exponential"))
    back = {(min(i, (i - far) % 8), max(i, (i - far) % 8)) for i in range(8) for far in (1, 2, 4)}
    assert set(fleet.links) == back
    few = new_fleet(small(agents=8, rounds=2, retention=0.3, schedule="matching"))
    assert len(few.links) <= 8
    with pytest.raises(PeermaskError, match=r"a fleet supports at most 10,000 rounds of it, not 10,001"):
        new_fleet(small(agents=8, rounds=10_001, retention=0.3, schedule="matching"))


def test_a_config_without_a_schedule_is_what_it_was() -> None:
    assert "schedule" not in make_config({}).table()
    assert make_config({"schedule": "matching"}).table()["schedule"] == {"name": "matching", "every": 1, "among": "all"}
