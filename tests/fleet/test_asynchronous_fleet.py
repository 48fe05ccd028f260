"""Asynchronous fleets: nobody waits for a slow, frozen or lost neighbour, and what was played can be played again."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

import pytest
from fleet_cases import Killed, MemoryFleet, simulated, tiny, tiny_fleet
from moved_time import MovedTime
from pulling_peers import Peer, moved_network, same

from peermask.cli.main import main
from peermask.config.file import make_config
from peermask.errors import NodeError
from peermask.fleet.collect import collect_run
from peermask.fleet.fleet import check
from peermask.fleet.puller import SILENT_SECONDS
from peermask.run.result import RunResult
from peermask.store.table import read_rows

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")


def sent(folder):
    """Bytes by agent, by the table of traffic."""
    total = {}
    for row in read_rows(folder / "traffic.csv"):
        total[row["agent"]] = total.get(row["agent"], 0) + round(int(row["links"]) * float(row["coded_bytes"]))
    return total


def replay(run, out):
    with suppress(SystemExit):
        main(["run", "--replay", str(run), "--out", str(out), "--quiet", "--device", "cpu"])
    return RunResult.open(out)


@on_linux
def test_a_slow_agent_holds_up_nobody_and_its_fleet_can_be_played_again(processes, tmp_path):
    """With mutual TLS. The others end while the slow one is still at work, which with `wait` they could not."""
    config = tiny(rounds=30, asynchronous={"grace": 0})  # or an answer may come too late: sent, and not used
    made = processes(config)
    made.hold(3, 0)
    made.start()
    for agent in (1, 2, 3):
        made.until_round(agent, 30)
    made.hold(6, 0)  # those who ended stay until it has their last messages
    assert made.join(1, 2, 3) == [0] * 3
    assert made.processes[0].exitcode is None
    assert made.reports(0)[-1]["round"] <= 6
    made.release()
    assert made.join(0) == [0]
    run = made.collect()
    assert all(made.result(agent)["absent"] == {} for agent in range(4))
    assert run.status == "finished"
    again = replay(tmp_path / "run", tmp_path / "again")
    assert again.hash == run.hash
    assert sent(tmp_path / "again") == sent(tmp_path / "run")
    last = {(row["agent"], row["neighbour"]): int(row["heard"]) for row in read_rows(tmp_path / "run" / "trace.csv")}
    assert last["0", "1"] == last["0", "3"] == 30
    assert last["1", "0"] == last["3", "0"] == 3


@on_linux
def test_with_wait_they_end_together(processes):
    made = processes(tiny(rounds=8), missing="wait")
    made.hold(4, 0)
    made.start()
    made.until_round(2, 5)  # the neighbours of 0 have published their messages of round 5, and wait for its own
    assert all(process.exitcode is None for process in made.processes.values())
    assert [made.reports(agent)[-1]["round"] for agent in (1, 3)] == [4, 4]
    made.release()
    assert made.join() == [0] * 4


@pytest.mark.long
@on_linux
def test_frozen_killed_and_started_again_everybody_plays_all_rounds(processes):
    made = processes(tiny(rounds=60, asynchronous={}), round_deadline=2.0)
    made.hold(5)
    made.start()
    made.until_round(2, 5)
    made.send(2, signal.SIGSTOP)
    made.until(1, lambda report: 2 in [a["neighbour"] for a in report["absent"]], "the silence of 2")
    made.kill(0)
    made.until(1, lambda report: 0 in [a["neighbour"] for a in report["absent"]], "the absence of 0")
    made.send(2, signal.SIGCONT)
    made.start(0)
    made.release()
    assert made.join() == [0] * 4
    assert [made.reports(agent)[-1]["round"] for agent in range(4)] == [60] * 4
    assert [report["round"] for report in made.reports(1)] == [*range(1, 61), 60]  # nobody jumps
    assert made.collect().status == "finished"


@pytest.mark.parametrize("name", ["mce-pl", "accord", "dsgd", "fedmask"])
def test_in_memory_every_method_is_played_again_to_the_same_hash_and_bytes(tmp_path, name):
    # Counts of more than a byte; and nobody waits, as an answer that comes too late is sent and not used.
    config = tiny(rounds=12, asynchronous={"weights": [100, 30, 1], "grace": 0}, algorithm=name)
    made = MemoryFleet(tiny_fleet(config), tmp_path, MovedTime())
    for agent in range(4):
        made.start(agent, on_round=lambda _, agent=agent: made.time.sleep(0.03 if agent == 2 else 0.001))
    made.join()
    assert made.results == dict.fromkeys(range(4), "finished")
    run = collect_run(made.fleet, [made.out(agent) for agent in range(4)], tmp_path / "run")
    assert replay(tmp_path / "run", tmp_path / "again").hash == run.hash
    assert sent(tmp_path / "again") == sent(tmp_path / "run")


def test_stopped_and_started_again_it_is_played_again_to_the_same_hash(tmp_path):
    """Whoever is told to stop saves the round it has played, so that none is played twice."""
    config = tiny(rounds=30, asynchronous={})
    made = MemoryFleet(tiny_fleet(config), tmp_path, MovedTime())
    stop = []
    made.start(
        0,
        on_round=lambda report: stop.append(report) if report.round == 7 else made.time.sleep(0.005),
        should_stop=lambda: bool(stop),
    )
    for agent in (1, 2, 3):
        made.start(agent, on_round=lambda _: made.time.sleep(0.01))
    made.join(0)
    assert made.results[0] == "interrupted"
    made.start(0)
    made.join()
    assert made.results == dict.fromkeys(range(4), "finished")
    run = collect_run(made.fleet, [made.out(agent) for agent in range(4)], tmp_path / "run")
    assert replay(tmp_path / "run", tmp_path / "again").hash == run.hash


def test_the_table_of_absences_names_no_message_that_has_expired(tmp_path):
    """Agent 0 is killed in round 2 of 12: its message counts while it is younger than two tenths."""
    config = tiny(agents=3, graph={"name": "complete"}, rounds=12, asynchronous={"weights": [16, 4], "grace": 0})
    made = MemoryFleet(tiny_fleet(config), tmp_path, MovedTime())

    def on_round(report):
        if report.round == 2:
            raise Killed

    made.start(0, on_round=on_round)
    for agent in (1, 2):
        made.start(agent)
    made.join()
    for agent in (1, 2):
        rows = {int(row["round"]): row["used"] for row in read_rows(made.out(agent) / "absences.csv")}
        heard = {int(row["round"]): int(row["heard"]) for row in read_rows(made.out(agent) / "trace.csv")
                 if row["neighbour"] == "0"}  # fmt: skip
        expired = {number for number in rows if 10 * (number - heard[number]) // (number + 10) >= 2}
        assert 12 in expired
        assert {number for number, used in rows.items() if not used} == {
            n for n in rows if n in expired or not heard[n]
        }


class Counted:
    """A transport that counts who is asked."""

    def __init__(self, transport):
        self.transport, self.asked = transport, []

    def ask(self, requests, patience):
        self.asked.append(sorted(requests))
        return self.transport.ask(requests, patience)

    def __getattr__(self, name):
        return getattr(self.transport, name)


class TestTaking:
    def peers(self):
        network = moved_network((0, 1), (0, 2))
        return network, *(
            Peer(network, agent, others, rounds=9) for agent, others in ((0, (1, 2)), (1, (0,)), (2, (0,)))
        )

    def test_the_newest_whatever_its_round_and_again_if_there_is_none_newer(self):
        _, one, slow, fast = self.peers()
        fast.publish(1, 2, 3)
        first = one.take(1)
        assert first.rounds == {2: 3}
        assert first.absent == []  # who has published nothing yet is only slow
        slow.publish(1)
        second = one.take(2)
        assert second.rounds == {1: 1, 2: 3}
        assert same(second.payloads[1], 1, 1)
        assert same(second.payloads[2], 2, 3)
        assert one.take(3).rounds == {1: 1, 2: 3}

    def test_who_leaves_is_absent_and_its_last_message_is_used(self):
        network, one, other, _ = self.peers()
        other.publish(4)
        one.take(1)
        network.leave(1)
        heard = one.take(2)
        assert heard.rounds == {1: 4}
        assert [(a.neighbour, a.why, a.used) for a in heard.absent] == [(1, "gone", 4)]

    def test_who_has_ended_is_not_absent(self):
        network, one, other, _ = self.peers()
        other.publish(9)
        one.take(1)
        network.leave(1)
        assert one.take(2).absent == []

    def test_who_does_not_answer_is_left_alone_for_a_while(self):
        network, one, other, _ = self.peers()
        one.around.transport = transport = Counted(one.transport)
        other.publish(1)
        one.take(1)
        network.silent.add(1)
        silent = one.take(2)
        assert [(a.neighbour, a.why, a.used) for a in silent.absent] == [(1, "silent", 1)]
        transport.asked.clear()
        for number in (3, 4, 5):
            assert one.take(number).rounds == {1: 1}
        assert transport.asked == [[2]] * 3
        network.silent.clear()
        other.publish(2)
        network.time.sleep(SILENT_SECONDS)
        assert one.take(6).rounds == {1: 2}

    def test_who_is_about_to_come_is_waited_for_a_moment_and_who_is_slow_is_not(self):
        network, one, near, slow = self.peers()
        one.publish(1)
        network.time.later(0.2, near.publish, 1)
        begun = network.time.monotonic()
        assert one.take(1, grace=1.0).rounds == {1: 1}  # both may come; one does
        assert network.time.monotonic() == begun + 1.0  # and the other is waited for as long
        assert one.take(2, grace=0.05).rounds == {1: 1}
        one.around.transport = transport = Counted(one.transport)
        one.take(3, grace=30.0)  # 1 was one behind, 2 two
        assert transport.asked == [[1], [1, 2]]
        slow.publish(2)  # it has caught up
        near.publish(8)
        transport.asked.clear()
        assert one.take(4, grace=30.0).rounds == {1: 8, 2: 2}
        assert transport.asked == [[1, 2]]
        assert slow.lines == near.lines == one.lines == []

    def test_they_begin_when_all_have_found_their_neighbours(self):
        """On a path of four, of which the last comes late: nobody begins before it is there."""
        network = moved_network((0, 1), (1, 2), (2, 3))
        ends = {agent: tuple(j for j in (agent - 1, agent + 1) if 0 <= j < 4) for agent in range(4)}
        begun, here = [], []

        def come(agent, farthest):
            peer = Peer(network, agent, ends[agent], rounds=9)
            peer.around.gather(60.0)
            peer.around.begin_together(farthest, 60.0)
            begun.append((agent, bool(here)))

        early = [network.time.start(come, agent, max(agent, 3 - agent)) for agent in range(3)]
        network.time.sleep(30.0)
        assert begun == []
        here.append(3)
        network.time.join(*early, network.time.start(come, 3, 3))
        assert sorted(begun) == [(agent, True) for agent in range(4)]

    def test_who_finds_a_fleet_that_has_begun_does_not_wait(self):
        _, one, other, _ = self.peers()
        other.publish(3)
        one.around.begin_together(2, 60.0)
        assert one.take(1).rounds == {1: 3}

    def test_one_that_ended_stays_until_those_who_are_there_have_its_last_message(self):
        network, one, other, third = self.peers()
        one.publish(8, 9)
        other.take(1)
        assert one.responder.was_sent(1, 9)
        assert not one.responder.was_sent(2, 9)
        third.take(1)
        begun = network.time.monotonic()
        one.puller.wait_until_sent(9)
        assert one.responder.was_sent(2, 9)
        assert network.time.monotonic() == begun


@pytest.mark.parametrize(
    ("asynchronous", "missing", "line"),
    [
        ({}, "wait", "missing = 'wait': agents of an asynchronous run do not wait"),
        ({"trace": "trace.csv"}, "last", "experiment.asynchronous.trace: only the simulator replays traces"),
    ],
)
def test_a_fleet_file_that_cannot_be_is_one_line(asynchronous, missing, line):
    with pytest.raises(NodeError, match=line):
        check(tiny_fleet(tiny(asynchronous=asynchronous), missing=missing))


def test_a_gpu_is_refused(tmp_path):
    from peermask.fleet.agent import NodeAgent
    from peermask.run.build import build

    fleet = tiny_fleet(tiny(asynchronous={}))
    with pytest.raises(NodeError, match="agents of such runs compute on a CPU; use --device cpu, not cuda"):
        NodeAgent(fleet, build(fleet.experiment), 0, tmp_path / "agent-0", None, device="cuda")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "--replay", "sync"], "sync is not asynchronous; run its config again instead"),
        (["run", "--replay", "sim"], "sim has no trace.csv: only a fleet records one"),
        (["run", "--replay", "none"], "there is no folder none; check the path"),
        (["run", "--replay", "sim", "--set", "seed=1"], "--replay repeats a run unchanged; it takes no CONFIG"),
        (["run", "config.toml", "--set", "algorithm.name=fl"], "asynchronous: agents of fl wait for a server"),
        (["run", "config.toml", "--processes", "2"], "asynchronous: such a run cannot be divided between processes"),
        (["run", "config.toml", "--set", "asynchronous.speeds=[1, 2]"], "asynchronous.speeds: 2 numbers for 4"),
        (["run", "config.toml", "--set", "asynchronous.grace=2"], "asynchronous.grace"),
        (["run", "config.toml", "--device", "cuda"], "asynchronous: agents are computed one by one, on a CPU"),
    ],
)
def test_a_command_that_cannot_be_is_one_line(tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    config = tiny(rounds=2, asynchronous={})
    (tmp_path / "config.toml").write_text(config.toml())
    simulated(tiny(rounds=2), tmp_path / "sync")
    simulated(config, tmp_path / "sim")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert line in said[0]


def test_the_config_of_a_fleet_is_that_of_the_simulator():
    config = tiny(asynchronous={"speeds": [0.1, 1, 1, 1]})
    assert tiny_fleet(config).experiment.hash == make_config(config.table()).hash
