"""One neighbour with a valid certificate floods another with questions: do the others go on, does memory stay bounded?

    python -m benchmarks.flood [--seconds 20] [--rate 10000]

Four agents on a ring over mutual TLS. Agent 3 is no agent: it opens a session with agent 3's certificate, greets, and
then asks agent 0 for a round, holding nothing, as often as it can up to the rate. Printed are rounds per second, memory
and open files of agent 0 before, while and after.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import zenoh

from benchmarks import soak
from peermask.fleet.agent import experiment_id_of
from peermask.fleet.credentials import check_credentials
from peermask.fleet.fleet import certificates_of, load_fleet
from peermask.fleet.messages import Greeting, Pull
from peermask.fleet.sessions import alive_key, ask_key, session_settings
from peermask.run.build import build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=10_000, help="questions a second")
    options = parser.parse_args()
    with ExitStack() as exit_:
        folder = Path(exit_.enter_context(tempfile.TemporaryDirectory()))
        agents = soak.start_agents(folder, exit_, agents=4)
        agents[3].process.kill()
        agents[3].process.wait()
        victim = agents[0]
        while victim.rounds < 50:  # they begin once agent 3 has not come for a while
            time.sleep(0.5)
        print(f"{platform.machine()}, {os.cpu_count()} cores", flush=True)
        watch("before", victim, options.seconds)
        asked = flood(folder / "fleet.toml", victim, options)
        watch("after", victim, options.seconds)
        for one in agents[:3]:
            one.process.send_signal(signal.SIGTERM)
        codes = [one.process.wait(90) for one in agents[:3]]
        print(f"questions: {asked:,}; exit codes of agents 0 to 2 when told to stop: {codes}")
        print("agent 0 said:", *victim.log.read_text().splitlines()[-3:], sep="\n  ")


def watch(when: str, victim: soak.Watched, seconds: float) -> None:
    before, begun = victim.rounds, time.monotonic()
    while time.monotonic() < begun + seconds:
        time.sleep(0.5)
        victim.sample()
    show(when, victim, before, seconds)


def show(when: str, victim: soak.Watched, before: int, seconds: float) -> None:
    _, memory, files = victim.samples[-1]
    rate = (victim.rounds - before) / seconds
    print(f"{when}: {rate:.1f} rounds/s, {memory:.0f} MB, {files} open files", flush=True)


def flood(path: Path, victim: soak.Watched, options: argparse.Namespace) -> int:
    """Ask until the time is over; how often."""
    fleet = load_fleet(path)
    settings = session_settings(fleet, 3, check_credentials(fleet, certificates_of(path, fleet), 3), 2**24)
    settings.pop("access_control")  # it follows no rule of its own
    card = experiment_id_of(fleet, build(fleet.experiment))
    config = zenoh.Config()
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    before, asked = victim.rounds, 0
    with zenoh.open(config) as session:
        session.liveliness().declare_token(alive_key(3))
        key, greeting = ask_key(0, 3), Greeting(card, 0).encode()
        while not any(reply.ok for reply in session.get(key, payload=greeting, timeout=1.0)):
            time.sleep(0.1)
        ignored = zenoh.handlers.Callback(_ignore, indirect=False)
        question = Pull(card.identity, 1, None, 0.0).encode()
        begun = time.monotonic()
        while (now := time.monotonic()) < begun + options.seconds:
            if asked < (now - begun) * options.rate:
                session.get(key, ignored, payload=question, timeout=1.0)
                asked += 1
            else:
                time.sleep(0.001)
            if asked % 1000 == 0:
                victim.sample()
        show(f"while asked {asked / options.seconds:,.0f} times a second", victim, before, options.seconds)
    return asked


def _ignore(_: zenoh.Reply) -> None: ...


if __name__ == "__main__":
    main()
