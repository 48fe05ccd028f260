"""Many threads ask while rounds go on: nothing that two threads touch is lost, torn or counted twice."""

from __future__ import annotations

import sys
import threading

import pytest
from fleet_cases import MemoryFleet, simulated, tiny, tiny_fleet
from moved_time import MovedTime
from pulling_peers import CARD, SCHEMA, message, same

from peermask.fleet.collect import collect_run
from peermask.fleet.messages import Answer, Greeting, Pull, decode_answer
from peermask.fleet.responder import AnswerLimits, Responder
from peermask.wire import Inbox
from peermask.wire.mailbox import KEPT_ROUNDS

ASKERS = 8
ROUNDS = 30
UNLIMITED = AnswerLimits(requests=(10**9, 0), messages=(10**9, 0))


@pytest.fixture
def often():
    """Threads take turns far more often than they would, so that what can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often")
def test_answers_are_whole_and_counted_once_however_many_ask():
    responder = Responder(0, range(1, ASKERS + 1), CARD, print, limits=UNLIMITED)
    received, reached, failures = [0] * (ASKERS + 1), [0] * (ASKERS + 1), []
    progress = threading.Condition()

    def ask(asker):
        inbox = Inbox(CARD.identity, SCHEMA, [0])
        lock = threading.Lock()

        def take(data):
            with lock:
                answer = decode_answer(data)
                if isinstance(answer, Greeting):
                    return
                assert isinstance(answer, Answer)
                if answer.frame is not None:
                    received[asker] += len(answer.frame)
                    inbox.accept(answer.frame, 0)
                    number, payload = inbox.newest[0]
                    assert same(payload, 0, number)
                    reached[asker] = number
                    with progress:
                        progress.notify_all()

        try:
            while inbox.newest_round(0) != ROUNDS:
                responder(asker, Greeting(CARD, 0).encode(), take)
                following = (inbox.newest_round(0) or 0) + 1
                responder(asker, Pull(CARD.identity, following, inbox.history(0), 0.0).encode(), take)
        except BaseException as error:
            failures.append(error)
            with progress:
                progress.notify_all()

    threads = [threading.Thread(target=ask, args=(asker,)) for asker in range(1, ASKERS + 1)]
    for thread in threads:
        thread.start()
    taken: dict[int, int] = {}
    for number in range(1, ROUNDS + 1):
        responder.publish(number, message(0, number), SCHEMA)
        assert responder.sent_bytes >= 0
        assert responder.newest == number
        if number % 10 == 0:  # as a checkpoint does
            for round_, sent in responder.take_sent(number).items():
                taken[round_] = taken.get(round_, 0) + sent.bytes
        responder.take_active()
        with progress:  # nobody is left behind, so that all ask all the time
            while not failures and min(reached[1:]) < number - 2:
                assert progress.wait(300)
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert failures == []
    for round_, sent in responder.take_sent(ROUNDS + 1).items():
        taken[round_] = taken.get(round_, 0) + sent.bytes
    assert sum(taken.values()) == responder.sent_bytes == sum(received)
    assert responder.met == frozenset(range(1, ASKERS + 1))


@pytest.mark.usefixtures("often")
def test_rounds_go_on_while_many_threads_pull(tmp_path):
    """Four agents play while eight threads ask in the name of their neighbours; they end as ever."""
    config = tiny(rounds=60, checkpoint={"every": 20}, evaluation={"every": 60})
    made = MemoryFleet(tiny_fleet(config), tmp_path / "fleet", MovedTime(), limits=UNLIMITED)
    turns, over = [threading.Semaphore(0) for _ in range(8)], threading.Event()

    def flood(number):
        agent = number % 4
        while turns[number].acquire() and not over.is_set():
            node = made.nodes[agent]
            asker = node.fleet.neighbours(agent)[number // 4]
            identity, newest = node.responder.experiment_id.identity, node.responder.newest
            for history in (None, 77) * 5:
                node.responder(asker, Pull(identity, newest, history, 0.0).encode(), len)

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        for agent in range(4):
            made.start(agent, on_round=lambda _, agent=agent: [turns[agent + one].release() for one in (0, 4)])
        made.join()
    finally:
        over.set()
        for number, thread in enumerate(threads):
            turns[number].release()
            thread.join(300)
    assert set(made.results.values()) == {"finished"}
    # All that was handed out is written and forgotten, but for what was asked for afterwards.
    assert all(len(node.responder.take_sent(1000)) <= KEPT_ROUNDS for node in made.nodes.values())
    run = collect_run(made.fleet, [made.out(agent) for agent in range(4)], tmp_path / "run")
    assert run.hash == simulated(config, tmp_path / "sim").hash
