"""The status of an agent, and of a relay, as Prometheus metrics: computed when requested, in a separate registry.

`GET /metrics` and `GET /healthz` serve it, on loopback unless configured otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from itertools import accumulate
from platform import python_version

from peermask.errors import NodeError
from peermask.fleet.environment import Line
from peermask.fleet.relay import RelayStatus
from peermask.fleet.status import BUCKETS, STATES, AgentStatus, Health, StatusMonitor
from peermask.page_server import TEXT, Answer, Pages, PageServer, serve_pages

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise NodeError("metrics need another package: pip install 'peermask[node]'") from error

Values = Mapping[str, tuple[str, float | None]]  # name -> description, value; None if there is none


METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def serve_metrics(
    host: str, port: int, metrics: _Metrics, health: Callable[[], Health], say: Callable[[str], None]
) -> Iterator[int]:
    """Serve metrics and health until the block ends, at a port that is returned; port 0 means any free one."""
    try:
        server = PageServer(host, port, status_pages(metrics.text, health))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NodeError(
            f"metrics cannot be served on {host}:{port}: {reason}; give another --metrics port or --metrics-host"
        ) from error
    with serve_pages(server):
        say(Line(f"metrics: {server.url}metrics", "metrics", port=server.port))
        yield server.port


def status_pages(metrics: Callable[[], bytes], health: Callable[[], Health]) -> Pages:
    """`/metrics`, and `/healthz`: 503 if failing. A degraded agent answers 200, since a restart does not help it."""

    def healthz() -> Answer:
        now = health()
        return 503 if now.state == "failing" else 200, TEXT, f"{now}\n".encode()

    return {"/metrics": lambda: (200, METRICS_TEXT, metrics()), "/healthz": healthz}


class _Metrics(Collector):
    def text(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


class RelayMetrics(_Metrics):
    def __init__(self, status: Callable[[], RelayStatus]) -> None:
        self.status = status

    def collect(self) -> Iterable[Metric]:
        now = self.status()
        yield InfoMetricFamily("peermask_relay_build", "What runs here.", value=_about(now))
        yield from _gauges(
            "peermask_relay",
            {
                "gate_connections": ("Open connections at the relay's port.", now.connections),
                "clients": ("Agents and operators that are connected, by their certificates.", now.clients),
                "waiting_agents": ("Agents that wait to be dialled.", now.waiting_agents),
                "roster": ("Number of the roster in use.", now.roster),
                "certificate_expiry_timestamp_seconds": ("When its certificate expires.", now.certificate_ends),
            },
        )
        yield CounterMetricFamily("peermask_relay_joined", "Connections that were joined.", value=now.joined)
        yield CounterMetricFamily(
            "peermask_relay_refused", "Connections that were not admitted, or dialled in vain.", value=now.refused
        )


class AgentMetrics(_Metrics):
    def __init__(self, monitor: StatusMonitor) -> None:
        self.monitor = monitor

    def collect(self) -> Iterable[Metric]:
        now = self.monitor.status()
        about = {**_about(now), "agent": str(now.agent)}
        yield InfoMetricFamily("peermask_build", "What runs here.", value=about)
        yield from _gauges("peermask", _values(now))
        yield from _labelled_gauges(now)
        yield from _counters(now)
        rounds = HistogramMetricFamily(
            "peermask_round_seconds",
            "Time from the end of a round to the end of the next, without the first after a start.",
        )
        counts = accumulate(now.buckets)
        ends = [*map(str, BUCKETS), "+Inf"]
        rounds.add_metric([], list(zip(ends, map(float, counts), strict=True)), now.seconds)
        yield rounds


def _about(now: AgentStatus | RelayStatus) -> dict[str, str]:
    return {
        "version": version("peermask"),
        "python": python_version(),
        "run": now.run,
        "roster": str(now.roster),
        "roster_digest": now.roster_digest,
    }


def _values(now: AgentStatus) -> Values:
    return {
        "round": ("The last round played.", now.round),
        "rounds": ("Rounds of the run.", now.rounds),
        "healthy": (
            "1 while rounds end in time or are finished, 0 when /healthz answers 503.",
            int(now.state != "failing"),
        ),
        "loss": ("Training loss of the last round.", now.loss),
        "accuracy": (f"Test {now.figure} of the last evaluation.", now.accuracy),
        "roster": ("Number of the roster in use.", now.roster),
        "neighbours": ("Neighbours in the graph.", now.neighbours),
        "neighbours_alive": ("Neighbours that are connected.", now.alive),
        "neighbours_heard": ("Neighbours whose message arrived in the last round.", now.heard),
        "rounds_behind": ("Rounds that most neighbours are ahead.", now.behind),
        "gate_connections": ("Open connections at the agent's port.", now.connections),
        "disk_free_bytes": ("Free space where the agent's folder is.", now.disk_free),
        "checkpoint_age_seconds": ("Seconds since the last checkpoint was written.", now.checkpoint_age),
        "certificate_expiry_timestamp_seconds": ("When the agent's certificate expires.", now.certificate_ends),
    }


def _gauges(prefix: str, values: Values) -> Iterator[Metric]:
    for name, (text, value) in values.items():
        if value is not None:
            yield GaugeMetricFamily(f"{prefix}_{name}", text, value=float(value))


def _labelled_gauges(now: AgentStatus) -> Iterator[Metric]:
    state = GaugeMetricFamily("peermask_state", "1 for the state of the agent, 0 for the others.", labels=["state"])
    for name in STATES:
        state.add_metric([name], float(name == now.state))
    yield state
    text = "Seconds since a message of a neighbour arrived, or since the start."
    ages = GaugeMetricFamily("peermask_neighbour_heard_age_seconds", text, labels=["neighbour"])
    for neighbour, seconds in now.heard_ages.items():
        ages.add_metric([str(neighbour)], seconds)
    yield ages


def _counters(now: AgentStatus) -> Iterator[Metric]:
    yield CounterMetricFamily("peermask_sent_bytes", "Bytes of messages sent since the start.", value=now.sent_bytes)
    yield CounterMetricFamily(
        "peermask_received_bytes", "Bytes of messages received since the start.", value=now.received_bytes
    )
    for name, text, counts in (
        ("sent", "Messages sent to a neighbour.", now.sent),
        ("received", "Messages received from a neighbour.", now.received),
    ):
        yield _labelled(f"peermask_{name}_messages", text, {j: {"": n} for j, n in counts.items()}, ["neighbour"])
    reasons = ["neighbour", "why"]
    yield _labelled("peermask_absences", "Rounds without a message of a neighbour.", now.absences, reasons)
    yield _labelled("peermask_refusals", "Bad messages of a neighbour, which were refused.", now.refusals, reasons)
    text = "Messages of a neighbour that were refused because it was late or early."
    yield _labelled("peermask_out_of_step", text, now.out_of_step, reasons)


def _labelled(name: str, text: str, counts: Mapping[int, Mapping[str, int]], labels: list[str]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for neighbour, reasons in counts.items():
        for why, count in reasons.items():
            family.add_metric([str(neighbour), why][: len(labels)], count)
    return family
