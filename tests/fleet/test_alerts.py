"""The alert rules in examples name metrics that exist, and raise what they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fleet_cases import Notes, tiny_fleet
from moved_time import MovedTime
from test_status import report

from peermask.fleet.metrics import AgentMetrics, RelayMetrics
from peermask.fleet.relay import RelayStatus
from peermask.fleet.status import StatusMonitor
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
RULES = ROOT / "examples" / "alerts.yml"


def test_every_metric_of_a_rule_exists(tmp_path):
    kept = StatusMonitor(Notes(), tiny_fleet(), 1, lambda: MovedTime().now())
    kept.connections = lambda: 3
    kept.follow(None, tmp_path)
    kept.round(report(1))
    relay = RelayMetrics(lambda: RelayStatus(1, 1, 1, 1, 1, "run", 1, "d1", 1.0))
    text = (AgentMetrics(kept).text() + relay.text()).decode()
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    asked = set(re.findall(r"\bpeermask_\w+", RULES.read_text()))
    assert asked <= known
    assert len(asked) >= 10


def test_every_alert_is_explained():
    explained = (ROOT / "docs" / "deploy.md").read_text()
    for name in re.findall(r"alert: (\w+)", RULES.read_text()):
        assert f"`{name}`" in explained


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool")
def test_promtool_reads_the_rules_and_raises_what_is_expected(tmp_path):
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
