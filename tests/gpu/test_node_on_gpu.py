"""A node on a GPU computes as the simulator does there: in fast float32, and tested before mixing where asked."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path

import pytest
import torch
from moved_time import MovedTime

from peermask.config.file import make_config
from peermask.errors import NodeError
from peermask.fleet.agent import NodeAgent
from peermask.fleet.fleet import new_fleet
from peermask.fleet.status import Report
from peermask.run.build import build
from peermask.store.table import read_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Alone:
    """A network on which nobody else is."""

    def __init__(self, time: MovedTime) -> None:
        self.time = time

    def alive(self) -> frozenset[int]:
        return frozenset()

    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, bytes]:  # noqa: ARG002
        return {}

    def stale_links(self) -> frozenset[int]:
        return frozenset()

    def await_change(self, seconds: float) -> None:
        self.time.sleep(seconds)


class Precisions:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def say(self, line: str) -> None: ...

    def round(self, report: Report) -> None:
        if report.round < report.rounds:
            self.seen.append(torch.get_float32_matmul_precision())


def test_a_node_computes_in_fast_float32(tmp_path: Path) -> None:
    settings = {"agents": 2, "rounds": 3, "retention": 0.3, "graph": "path", "model": "mlp", "algorithm": "dsgd"}
    config = make_config({**settings, "evaluation": {"every": 2, "unmixed": True}})
    fleet = new_fleet(config).model_copy(update={"start_limit": 0.05})
    precisions, before, time = Precisions(), torch.get_float32_matmul_precision(), MovedTime()
    node = NodeAgent(fleet, build(config), 0, tmp_path / "agent-0", precisions, device="cuda", time=time)
    node.restore()
    node.responder._met.add(1)  # a neighbour was there once: a node does not begin alone
    with pytest.raises(
        NodeError, match="no message of a neighbour arrived"
    ):  # which is said at the end, when all is written
        node.run(Alone(time))
    assert precisions.seen == ["high", "high"]
    assert torch.get_float32_matmul_precision() == before
    assert not any(isnan(float(row["unmixed_accuracy"])) for row in read_rows(tmp_path / "agent-0" / "metrics.csv"))
