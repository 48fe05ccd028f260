"""Agents of a fleet, as threads on a network in memory: equal to the simulator, whatever happens on the way."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from fleet_cases import Killed, MemoryFleet, simulated, tiny, tiny_fleet
from moved_time import MovedTime

from peermask.errors import DivergedError, NodeError, NotYetError, RunError
from peermask.files import read_json
from peermask.fleet.agent import NodeAgent, experiment_id_of
from peermask.fleet.collect import collect_run
from peermask.fleet.exchange import NodeExchange
from peermask.fleet.journal import ranges
from peermask.fleet.messages import Greeting, decode_request
from peermask.fleet.responder import Responder
from peermask.reports.source import faults_of
from peermask.reports.tables import closing_lines
from peermask.run.loop import RecentLosses
from peermask.run.metrics import METRICS
from peermask.run.result import RunResult
from peermask.store.checkpoint import list_checkpoints
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows
from peermask.task import format_bytes

ROUNDS = 6


@pytest.fixture
def fleet(tmp_path):
    def make(config=None, **keys):
        return MemoryFleet(tiny_fleet(config, **keys), tmp_path, MovedTime())

    return make


def collected(fleet, tmp_path):
    folders = [fleet.out(agent) for agent in range(len(fleet.fleet.agents))]
    return collect_run(fleet.fleet, folders, tmp_path / "run")


def killed_in(number, kill=True):
    """Ends the agent after that round has been played, before anything is known of it outside."""

    def on_round(report):
        if report.round == number and kill:
            raise Killed

    return on_round


def start_all(fleet, **special):
    for agent in range(len(fleet.fleet.agents)):
        fleet.start(agent, **special.get(f"agent_{agent}", {}))


def test_answers_among_own_labels_are_counted_as_in_the_simulator(fleet, tmp_path):
    config = tiny(algorithm={"name": "mce-pl", "lr": 1e-3}, readout="own")  # steps so small that the readout matters
    made = fleet(config)
    made.run()
    run, expected = collected(made, tmp_path), simulated(config, tmp_path / "sim")
    assert run.readout == "own"
    assert run.mean_accuracy == run.mean("test_accuracy_own") > run.mean("test_accuracy_all")
    for name in METRICS:
        if "accuracy" in name and name != "unmixed_accuracy":
            tables = [read_rows(each.folder.metrics) for each in (run, expected)]
            assert [row[name] for row in tables[0]] == [row[name] for row in tables[1]]


def test_the_collected_folder_is_an_ordinary_run(fleet, tmp_path):
    made = fleet()
    made.run()
    run, expected = collected(made, tmp_path), simulated(tiny(), tmp_path / "sim")
    assert (run.status, run.round, run.hash) == ("finished", ROUNDS, expected.hash)
    assert RunResult.open(tmp_path / "run").mean_accuracy == expected.mean_accuracy
    assert run.sent_bytes == expected.sent_bytes  # the codec's own bytes, counted here as they are sent
    assert read_rows(tmp_path / "run" / "absences.csv") == []


@pytest.mark.parametrize("name", ["dsgd", "mce-pl"])
def test_models_are_tested_as_they_were_sent_too(fleet, tmp_path, name):
    config = tiny(algorithm=name, evaluation={"every": 2, "unmixed": True})
    made = fleet(config)
    made.run()
    collected(made, tmp_path)
    simulated(config, tmp_path / "sim")
    ours, theirs = (read_rows(tmp_path / run / "metrics.csv") for run in ("run", "sim"))
    assert len(ours) == 3 * 4
    unmixed = [[float(row["unmixed_accuracy"]) for row in rows] for rows in (ours, theirs)]
    assert unmixed[0] == pytest.approx(unmixed[1], abs=0.02, nan_ok=True)
    assert all(value != value for value in unmixed[0]) == (name == "mce-pl")  # what it sends is no model


def test_losses_are_kept_as_floats_until_they_are_evaluated(fleet, monkeypatch):
    """Tensors would keep what they were computed from."""
    kept = []

    def looked_at(self):
        kept.extend(self._latest)
        return mean(self)

    mean = RecentLosses.mean
    monkeypatch.setattr(RecentLosses, "mean", looked_at)
    fleet().run()
    assert {type(loss) for losses in kept for loss in losses} == {float}


def test_a_message_of_a_fleet_is_the_mean_of_those_it_sent(tmp_path):
    """A simulated `fl` has a server, a fleet of it sends along its links: another number of messages."""
    config = tiny(algorithm={"name": "fl"}, graph={"name": "complete"})
    made = MemoryFleet(tiny_fleet(config, missing="wait"), tmp_path / "fleet", MovedTime())
    made.run()
    run = collected(made, tmp_path)
    assert f"a message: {format_bytes(run.sent_bytes / (4 * 3 * ROUNDS))}; " in closing_lines(run)[-2]
    assert f"{4 * 3 * ROUNDS} messages, " in closing_lines(run)[-1]


@pytest.mark.parametrize(("agent", "number"), [(0, 1), (1, 3), (2, 5), (3, 4), (0, ROUNDS)])
def test_with_wait_a_killed_agent_leaves_no_trace_in_the_result(fleet, tmp_path, agent, number):
    made = fleet(missing="wait")
    start_all(made, **{f"agent_{agent}": {"on_round": killed_in(number)}})
    made.join(agent)
    made.start(agent)
    made.join()
    assert set(made.results.values()) == {"finished"}
    assert collected(made, tmp_path).hash == simulated(tiny(), tmp_path / "sim").hash


def test_an_agent_killed_before_its_result_is_written_writes_it_later(fleet, tmp_path, monkeypatch):
    made = fleet(missing="wait")

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(NodeAgent, "_finish", killed)
        made.run()
    assert made.results == {}
    before = [read_rows(made.out(agent) / "metrics.csv") for agent in range(4)]
    made.run()
    assert set(made.results.values()) == {"finished"}
    assert [read_rows(made.out(agent) / "metrics.csv") for agent in range(4)] == before
    run = collected(made, tmp_path)
    assert run.hash == simulated(tiny(), tmp_path / "sim").hash
    assert read_json(RunFolder(made.out(0)).result)["test_accuracy"] == pytest.approx(run.agents[0].test_accuracy)


@pytest.mark.parametrize("missing", ["last", "skip"])
def test_the_others_go_on_without_a_killed_agent(fleet, missing):
    made = fleet(missing=missing)
    start_all(made, agent_2={"on_round": killed_in(3)})
    made.join()
    assert [made.results.get(agent) for agent in range(4)] == ["finished", "finished", None, "finished"]
    for neighbour in (1, 3):
        absent = read_json(RunFolder(made.out(neighbour)).result)["absent"]
        assert absent == {"2": [4, 5, 6]}
        rows = read_rows(made.out(neighbour) / "absences.csv")
        assert [(row["why"], row["used"]) for row in rows] == [("gone", "3" if missing == "last" else "")] * 3
        assert any("round 4: agent 2 is gone" in line for line in made.notes[neighbour].lines)
    assert read_json(RunFolder(made.out(0)).result)["absent"] == {}


@pytest.mark.parametrize("name", ["accord", "mce-pl", "dsgd"])
def test_a_dead_agent_counts_by_age_and_then_not_at_all(fleet, name):
    """Agent 2 is killed in round 3 of 12: in the weights of its message, halved each round, and in the table."""
    made, seen = fleet(tiny(rounds=12, algorithm={"name": name})), {}
    weigh = NodeExchange._weigh

    def looked_at(self, received, mixing, round):
        columns, mixed = weigh(self, received, mixing, round)
        if self.agent == 1:
            seen[round] = mixed.links.strengths.tolist(), mixed.own_weight
        return columns, mixed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NodeExchange, "_weigh", looked_at)
        start_all(made, agent_2={"on_round": killed_in(3)})
        made.join()
    assert [made.results.get(agent) for agent in range(4)] == ["finished", "finished", None, "finished"]
    assert [seen[number] for number in range(3, 9)] == [
        ([1, 1], 1), ([2, 1], 2), ([4, 1], 4), ([8, 1], 8), ([16, 1], 16), ([1], 1),
    ]  # fmt: skip
    rows = read_rows(made.out(1) / "absences.csv")
    assert [row["used"] for row in rows] == ["3"] * 4 + [""] * 5


def test_a_killed_agent_rejoins_in_the_round_the_fleet_has_reached(fleet, tmp_path):
    made = fleet(tiny(rounds=30))
    again = {"done": False}

    def restart(report):
        if report.round == 15 and not again["done"]:
            again["done"] = True
            made.threads[2].join(300)
            made.start(2)

    start_all(made, agent_2={"on_round": killed_in(5)}, agent_1={"on_round": restart})
    made.join()
    assert set(made.results.values()) == {"finished"}
    assert any("the fleet is in round" in line for line in made.notes[2].lines)
    missed = made.nodes[1].journal.absent_rounds()[2]
    assert missed[0] == 6
    assert 15 <= missed[-1] < 30
    assert any("agent 2 is back" in line for line in made.notes[1].lines)
    assert collected(made, tmp_path).status == "finished"


def test_an_agent_hundreds_of_rounds_behind_its_only_neighbour_is_back_at_once(fleet):
    made = fleet(tiny(agents=2, rounds=400, graph={"name": "path"}, checkpoint={"every": 5}, evaluation={"every": 400}))
    began = []

    def restart(report):
        if report.round == 300:
            made.threads[1].join(300)
            began.append(made.time.monotonic())
            made.start(1, on_round=lambda _: began.append(made.time.monotonic()))

    start_all(made, agent_1={"on_round": killed_in(7)}, agent_0={"on_round": restart})
    made.join()
    assert set(made.results.values()) == {"finished"}
    assert made.notes[1].reports[0].round >= 300
    assert began[1] - began[0] < 5
    missed = made.nodes[0].journal.absent_rounds()[1]
    assert missed[0] == 8
    assert missed[-1] <= 302
    for agent in (0, 1):
        result = read_json(RunFolder(made.out(agent)).result)
        assert (result["refused"], result["out_of_step"]) == ({}, {})


@pytest.mark.parametrize("behind", [(3,), (0, 1)])
def test_after_a_power_cut_all_go_on_from_the_newest_checkpoint_that_all_have(fleet, tmp_path, behind):
    """Checkpoints of rounds 4 and 8; some agents have lost the last."""
    config = tiny(rounds=12, checkpoint={"every": 4})
    made = fleet(config, missing="wait")
    start_all(made, **{f"agent_{agent}": {"on_round": killed_in(9)} for agent in range(4)})
    made.join()
    assert made.results == {}
    for agent in behind:
        list_checkpoints(made.out(agent) / "checkpoints")[-1].unlink()
    start_all(made)
    made.join()
    assert set(made.results.values()) == {"finished"}
    assert collected(made, tmp_path).hash == simulated(config, tmp_path / "sim").hash
    went_back = {agent for agent in range(4) if any("going back" in line for line in made.notes[agent].lines)}
    assert went_back == set(range(4)) - set(behind)


def test_agents_without_a_common_checkpoint_say_that_the_result_differs(fleet):
    made = fleet(tiny(rounds=20, checkpoint={"every": 4}), missing="wait")
    start_all(made, **{f"agent_{agent}": {"on_round": killed_in(17)} for agent in range(4)})
    made.join()
    for path in list_checkpoints(made.out(3) / "checkpoints"):
        path.unlink()
    start_all(made)
    made.join()
    assert set(made.results.values()) == {"finished"}
    said = [line for agent in (0, 2) for line in made.notes[agent].lines if "the result will differ" in line]
    assert len(said) == 2


def test_a_late_joiner_finds_the_fleet_and_ends_with_it(fleet):
    made = fleet(tiny(rounds=20), start_limit=1.0)

    def late(report):
        if report.round == 8:
            made.start(3)

    start_all_but = [0, 1, 2]
    for agent in start_all_but:
        made.start(agent, **({"on_round": late} if agent == 0 else {}))
    made.join(0, 1, 2)
    made.join()
    assert set(made.results.values()) == {"finished"}
    assert made.notes[3].reports[0].round >= 8
    assert any("agent 3 has not appeared; starting without it" in line for line in made.notes[0].lines)


def test_an_agent_cut_off_goes_on_with_those_it_reaches_and_comes_back(fleet):
    made = fleet(tiny(rounds=30))
    network = made.network

    def cable(report):
        if report.round == 5:
            network.cut(0, 1)
        if report.round == 12:
            network.mend(0, 1)

    start_all(made, agent_0={"on_round": cable})
    made.join()
    assert set(made.results.values()) == {"finished"}
    missed = made.nodes[0].journal.absent_rounds()
    assert list(missed) == [1]
    assert set(range(6, 12)) <= set(missed[1])
    assert made.notes[0].reports[-1].absent == ()


def test_an_agent_whom_nobody_joins_does_not_begin(fleet):
    made = fleet(start_limit=0.05)
    made.start(1)
    made.join()
    assert isinstance(made.results[1], NotYetError)
    assert "none of agents 0, 2 has appeared" in str(made.results[1])
    assert not RunFolder(made.out(1)).result.exists()


def test_an_agent_left_alone_still_ends(fleet):
    made = fleet(tiny(agents=2, graph={"name": "path"}))
    start_all(made, agent_0={"on_round": killed_in(2)})
    made.join()
    assert made.results == {1: "finished"}
    assert made.nodes[1].journal.absent_rounds() == {0: [3, 4, 5, 6]}


def test_an_agent_that_never_heard_anybody_is_not_finished(fleet):
    """Its neighbour came and greeted, and not one message of it could be taken."""
    made = fleet(tiny(agents=2, graph={"name": "path"}))
    liar = Responder(0, (1,), made_card(made), print)

    def handler(asker, request, reply):
        garbage = decode_request(request)
        liar(asker, request, reply) if isinstance(garbage, Greeting) else reply(b"F" + bytes(40))

    made.network.join(0, handler)
    made.start(1)
    made.join()
    assert isinstance(made.results[1], NodeError)
    assert "no message of a neighbour arrived in any round" in str(made.results[1])
    assert not RunFolder(made.out(1)).result.exists()
    assert {row["why"] for row in read_rows(made.out(1) / "absences.csv")} == {"refused (damaged)"}


def made_card(made):
    return experiment_id_of(made.fleet, made.experiment)


def test_a_frozen_neighbour_costs_a_deadline_a_round(fleet):
    made = fleet(tiny(rounds=3), round_deadline=0.05)
    start_all(made, agent_3={"on_round": lambda _: made.network.silent.add(3)})
    made.join()
    assert set(made.results.values()) == {"finished"}
    assert {absence["why"] for absence in read_rows(made.out(0) / "absences.csv")} <= {"silent", "gone"}


def test_a_stop_finishes_the_round_saves_and_goes_on_later(fleet, tmp_path):
    made = fleet(missing="wait")
    stopping = {"now": False}

    def stop(report):
        stopping["now"] = report.round == 3

    start_all(made, agent_1={"on_round": stop, "should_stop": lambda: stopping["now"]})
    made.join(1)
    assert made.results[1] == "interrupted"
    assert made.notes[1].reports[-1].round == 3
    stopping["now"] = False
    made.start(1)
    made.join()
    assert collected(made, tmp_path).hash == simulated(tiny(), tmp_path / "sim").hash


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(fleet, tmp_path):
    made = fleet(missing="wait")
    start_all(made, agent_0={"on_round": killed_in(4)})
    made.join(0)
    saved = list_checkpoints(made.out(0) / "checkpoints")
    saved[-1].write_bytes(saved[-1].read_bytes()[:100])
    made.start(0)
    made.join()
    assert "is damaged" in made.notes[0].lines[0]
    assert made.notes[0].lines[1] == "continuing after round 3"
    assert made.notes[0].reports[0].round == 4  # round 3 was the checkpoint before
    assert collected(made, tmp_path).hash == simulated(tiny(), tmp_path / "sim").hash


@pytest.mark.parametrize("name", ["metrics.csv", "traffic.csv"])
def test_a_damaged_table_is_set_aside_and_the_agent_goes_on(fleet, name):
    made = fleet(missing="wait")
    start_all(made, agent_0={"on_round": killed_in(5)})
    made.join(0)
    table = made.out(0) / name
    damaged = table.read_bytes()[:-40] + b"\x8f" + table.read_bytes()[-39:]
    table.write_bytes(damaged)
    made.start(0)
    made.join()
    assert set(made.results.values()) == {"finished"}
    (line,) = (line for line in made.notes[0].lines if "set aside" in line)
    assert line.startswith(f"{table} is damaged (")
    assert line.endswith(f"; set aside as {name}.damaged-5, its rows are missing")
    assert (made.out(0) / f"{name}.damaged-5").read_bytes() == damaged
    assert {int(row["round"]) for row in read_rows(table)} == {6}


def test_when_every_checkpoint_is_damaged_the_agent_says_so(fleet):
    made = fleet()
    start_all(made, agent_0={"on_round": killed_in(3)})
    made.join()
    for path in list_checkpoints(made.out(0) / "checkpoints"):
        path.write_bytes(b"")
    with pytest.raises(RunError, match="is damaged"):
        made.start(0)


def test_a_full_disk_ends_one_agent_with_a_line_and_its_last_checkpoint_stays(fleet, monkeypatch):
    from peermask import files

    made = fleet()
    whole = files.os.fsync
    full = made.out(2) / "checkpoints"

    def fsync(descriptor):
        path = files.os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(full)) and "000004" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(descriptor)

    monkeypatch.setattr(files.os, "fsync", fsync)
    made.run()
    assert isinstance(made.results[2], RunError)
    assert "No space left on device" in str(made.results[2])
    assert [made.results[agent] for agent in (0, 1, 3)] == ["finished"] * 3
    assert [path.name for path in full.iterdir()] == ["round-000002.safetensors", "round-000003.safetensors"]
    monkeypatch.undo()
    made.start(2, should_stop=lambda: True)
    made.join()
    assert made.notes[2].reports[-1].round == 3


def test_a_finished_folder_is_left_as_it_is(fleet):
    made = fleet(tiny(rounds=3, agents=2, graph={"name": "path"}))
    made.run()
    before = {path: path.read_bytes() for path in made.out(0).rglob("*") if path.is_file()}
    made.nodes[0].journal.open(print)
    assert {path: path.read_bytes() for path in made.out(0).rglob("*") if path.is_file()} == before


def test_ranges():
    assert ranges([9, 7, 8, 3]) == "3, 7-9"
    assert ranges([]) == ""


def test_what_a_killed_agent_had_half_written_is_cleared(fleet):
    made = fleet(tiny(agents=2, graph={"name": "path"}))
    start_all(made, agent_0={"on_round": killed_in(2)})
    made.join()
    rests = [
        made.out(0) / ".absences.csv.77.part",
        made.out(0) / "checkpoints" / ".round-000003.safetensors.77.part",
        made.out(0) / "checkpoints" / ".tmpAbC",
    ]
    for rest in rests:
        rest.write_bytes(b"half")
    made.start(0, should_stop=lambda: True)
    made.join()
    assert not any(rest.exists() for rest in rests)


@pytest.mark.parametrize("value", [3.4e38, 1001.0])
def test_one_huge_value_among_real_ones_stops_nobody(fleet, monkeypatch, value):
    """Agent 0 sends it from round 3 on; its neighbours refuse it, and all others end."""
    made = fleet(tiny(algorithm={"name": "dsgd"}))
    publish = Responder.publish

    def lie(self, number, payload, *known):
        if self.agent == 0 and number >= 3:
            payload = {name: np.full_like(leaf, value) for name, leaf in payload.items()}
        publish(self, number, payload, *known)

    monkeypatch.setattr(Responder, "publish", lie)
    assert set(made.run().values()) == {"finished"}
    for neighbour in (1, 3):
        rows = read_rows(made.out(neighbour) / "absences.csv")
        assert [(row["round"], row["why"], row["used"]) for row in rows] == [
            (str(number), "refused (values)", "2") for number in (3, 4, 5, 6)
        ]
        assert read_json(RunFolder(made.out(neighbour)).result)["refused"]["0"]["values"] >= 12  # three a round
    assert read_rows(made.out(2) / "absences.csv") == []


def test_an_agent_whose_own_values_are_no_numbers_says_so_itself(fleet):
    made = fleet(tiny(agents=2, graph={"name": "path"}, algorithm={"name": "dsgd", "lr": 1e30}))
    made.run()
    assert all(isinstance(error, DivergedError) for error in made.results.values())
    assert all("try a smaller algorithm.lr" in str(error) for error in made.results.values())


def test_a_mask_with_more_than_its_share_is_refused_and_reported(fleet, monkeypatch, tmp_path):
    made = fleet(tiny())
    publish = Responder.publish

    def lie(self, number, payload, *known):
        publish(self, number, {"mask": ~payload["mask"]} if self.agent == 0 else payload, *known)

    monkeypatch.setattr(Responder, "publish", lie)
    assert set(made.run().values()) == {"finished"}
    run = collected(made, tmp_path)
    faults = faults_of(read_rows(tmp_path / "run" / "absences.csv"))
    assert faults["reasons"] == [["refused (counts)", 2 * ROUNDS]]
    assert run.status == "finished"
