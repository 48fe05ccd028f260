"""How fast a fleet exchanges: rounds per second and exchange time of a ring over mutual TLS on this machine.

    python -m benchmarks.fleet [--agents 8] [--rounds 300] [--insecure]

One process per agent, no learning: an exchange is publishing a message and having both neighbours' of that round,
with encoding, access control and decoding. All processes share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import Figures, add_option
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.fleet.certificates import make_certificates
from peermask.fleet.credentials import check_credentials
from peermask.fleet.fleet import Fleet, certificates_of, load_fleet, new_fleet, save_fleet
from peermask.fleet.messages import ExperimentId
from peermask.fleet.neighbourhood import Neighbourhood
from peermask.fleet.puller import Puller
from peermask.fleet.responder import Responder
from peermask.fleet.sessions import session_settings
from peermask.fleet.zenoh_transport import open_zenoh
from peermask.streams import stream
from peermask.wire import Schema

WARM_UP = 20  # rounds left out of the figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--insecure", action="store_true", help="plain TCP, to see what the rest costs")
    parser.add_argument("--agent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fleet", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    add_option(parser)
    options = parser.parse_args()
    if options.rounds <= WARM_UP:
        parser.error(f"--rounds {options.rounds}: the first {WARM_UP} are left out of the figures; give more")
    if options.agent is not None:
        print(json.dumps(exchange_times(options)))
        return
    print(f"{options.agents} agents on a ring, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    print("message  rounds/s  p50 ms  p99 ms")
    figures = Figures.begin()
    for size in (4096, 65536):
        times = measure(options, size)
        p50, p99 = np.percentile(times[:, WARM_UP:], [50, 99]) * 1000
        per_second = options.rounds / times.sum(1).max()
        print(f"{size // 1024:4d} KB  {per_second:8.0f}  {p50:6.1f}  {p99:6.1f}")
        figures.add(f"{size // 1024} KB: rounds", per_second, "a second", better="more")
        figures.add(f"{size // 1024} KB: exchange, p50", p50, "ms")
        figures.add(f"{size // 1024} KB: exchange, p99", p99, "ms")
    figures.write(options.json)


def measure(options: argparse.Namespace, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Seconds of every exchange: [agents, rounds]."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as exit_:
        config = make_config({"agents": options.agents, "graph": {"name": "ring"}})
        path = write_fleet(Path(folder), new_fleet(config, port=free_ports(options.agents)))
        own = ["--rounds", str(options.rounds), "--fleet", str(path), "--bytes", str(size)]
        own += ["--insecure"] * options.insecure
        processes = [
            start(exit_, "benchmarks.fleet", "--agent", agent, *own, stdout=subprocess.PIPE)
            for agent in range(options.agents)
        ]
        return np.array([json.loads(process.communicate(timeout=300)[0]) for process in processes])


def exchange_times(options: argparse.Namespace) -> list[float]:
    """One agent's part: publish and pull, round after round."""
    fleet, agent = load_fleet(options.fleet), options.agent
    folder = certificates_of(options.fleet, fleet)
    credentials = None if options.insecure else check_credentials(fleet, folder, agent)
    responder = Responder(agent, fleet.neighbours(agent), ExperimentId(fleet.run, "benchmark", "benchmark"), print)
    width = options.bytes // 4
    payload = {"values": stream(0, "benchmark", agent).normal(width).astype(np.float32)}
    schema = Schema.of(payload, [width])
    times = []
    with open_zenoh(session_settings(fleet, agent, credentials, 2**24), agent, responder) as transport:
        limits = fleet.model_copy(update={"missing": "wait", "wait_limit": 60.0})
        around = Neighbourhood(transport, responder, fleet.neighbours(agent), limits)
        puller = Puller(around)
        around.gather(60.0)
        for number in range(1, options.rounds + 1):
            begun = time.perf_counter()
            responder.publish(number, payload, schema)
            heard = puller.pull(number, schema)
            times.append(time.perf_counter() - begun)
            assert not heard.absent
        puller.finish(options.rounds)
    return times


def small_config(agents: int, rounds: int, checkpoint_every: int, **changes: object) -> ExperimentConfig:
    """A ring that plays many rounds a second."""
    small: dict[str, object] = {
        "agents": agents,
        "rounds": rounds,
        "batch_size": 8,
        "retention": 0.3,
        "graph": {"name": "ring" if agents > 2 else "path"},
        "data": {"fraction": 0.1},
        "model": {"name": "mlp", "hidden": [12]},
        "evaluation": {"every": rounds},
        "checkpoint": {"every": checkpoint_every},
    }
    return make_config(small | changes)


def write_fleet(folder: Path, fleet: Fleet) -> Path:
    """Write the fleet file and all certificates; return the path of the file."""
    path = folder / "fleet.toml"
    save_fleet(path, fleet)
    make_certificates(fleet, certificates_of(path, fleet))
    return path


def start(stack: ExitStack, module: str, *arguments: object, **pipes: Any) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE` on one thread; it is killed with the stack."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    stack.callback(process.kill)
    return process


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody uses; benchmarks that run side by side look at other places."""
    blocks = range(20_000, 32_000, 100)  # the system gives those above to whoever connects
    for number in range(len(blocks)):
        first = blocks[(os.getpid() + number) % len(blocks)]
        try:
            with ExitStack() as held:
                for port in range(first, first + count):
                    probe = held.enter_context(socket.socket())
                    # As agents do: connections that have ended are no reason to take the ports of another benchmark.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


if __name__ == "__main__":
    main()
