"""Mistakes in a config: through the library and the command line the same line, with the key, the value and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from commands import Refused
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import load_config
from peermask.errors import PeermaskError
from peermask.run.build import build

CRAFTED = {"count": 1, "kind": "crafted"}
TEN = {"agents": 10, "retention": 0.3}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"roundz": 5}, r"roundz: unknown key; did you mean 'rounds'\?"),
    ({"data": {"fractoin": 0.5}}, r"data\.fractoin: unknown key; did you mean 'fraction'\?"),
    ({"algorithm": {"name": "mce-pl", "lrr": 1}}, r"algorithm\.lrr: unknown key; did you mean 'lr'\?"),
    ({"algorithm": "mce_pl"}, r"algorithm\.name: unknown algorithm 'mce_pl'; did you mean 'mce-pl'\?"),
    ({"graph": {"name": "rign"}}, r"graph\.name: unknown topology 'rign'; did you mean 'ring'\?"),
    ({"graph": {"name": "ring", "p": 0.5}}, r"graph\.p: unknown key"),
    ({"graph": 5}, r"graph = 5: must be a table with a name"),
    ({"dataset": "cifar"}, r"dataset\.name: unknown dataset 'cifar'; did you mean 'cifar10'\?"),
    ({"frozen": {"init": "kaiming"}}, r"unknown init 'kaiming'"),
    ({"rounds": "many"}, r"rounds = 'many': must be a whole number$"),
    ({"rounds": 0}, r"rounds = 0: must be at least 1$"),
    ({"retention": 0}, r"retention = 0: must be in \(0, 1\]"),
    ({"retention": 1.5}, r"retention = 1\.5: must be in \(0, 1\]"),
    ({"retention": [0.1, 2]}, r"agent 1 has 2; every retention must be in \(0, 1\]"),
    ({"retention": "half"}, r"retention = 'half': must be a number"),
    ({"retention": True}, r"retention = True: must be a number"),
    ({"retention": {"choices": []}}, r"^retention\.choices = \[\]: must be a list of at least 1$"),
    ({"mask": {"fc_keep": "x"}}, r"^mask\.fc_keep = 'x': must be a number, or must be 'r'$"),
    ({"partition": {"name": "labels", "labels_per_agent": 0}}, r"^partition\.labels_per_agent = 0: must be at least 1"),
    ({"seed": -1}, r"seed = -1"),
    ({"algorithm": {"name": "mce-pl", "lr": float("nan")}}, r"algorithm\.lr = nan"),
    ({"name": "../escape"}, r"name = '\.\./escape'"),
    ({"readout": "mine"}, r"^readout = 'mine': must be 'all' or 'own'$"),
    ({"readout": ["all"]}, r"^readout = .*: must be 'all' or 'own'$"),
    ({"retention": [0.1, 0.2]}, "retention: 2 values for 4 agents"),
    ({"agents": True}, "agents = True: must be a number, not true or false"),
    ({"model": {"name": "mlp", "hidden": [True]}}, r"model\.hidden = \[True\]: must be a number"),
    ({"model": {"name": "mlp", "hidden": 100 * [65536]}}, r"parameters, which take about .* are free; make it smaller"),
    ({"data": {"fraction": True}}, r"data\.fraction = True: must be a number"),
    ({"graph": {"name": "erdos-renyi", "p": 0.001}, **TEN}, "raise graph.p"),
    ({"partition": {"name": "labels", "labels_per_agent": 11}}, "labels_per_agent"),
    ({"agents": 3000, "retention": 0.1}, "agent"),
    ({"dataset": {"name": "npz", "path": "nowhere.npz"}}, "nowhere.npz"),
    ({"dataset": {"name": "cifar10", "folder": "nowhere"}}, "nowhere"),
    ({"model": "alexnet"}, "does not fit the 1x8x8 images of digits"),
    ({"mask": {"layers": ["conv*"]}}, r"mask\.layers: 'conv\*' matches no layer"),
    ({"algorithm": {"name": "accord", "own_votes": 0, "step": "absolute"}}, "^algorithm: lr = 'auto' is for step"),
    ({"algorithm": {"name": "accord", "pull": -0.1}}, r"algorithm\b.*at least 0"),
    ({"algorithm": {"name": "accord", "vote_gain": -1}}, r"algorithm\b.*at least"),
    ({"algorithm": {"name": "accord", "guard": 0.5}}, r"algorithm\b.*at least 1"),
    ({"algorithm": {"name": "accord", "own_votes": -1}}, r"algorithm\b.*at least 0"),
    ({"algorithm": {"name": "accord", "own_votes": 2.5}}, r"algorithm\b.*whole number"),
    ({"algorithm": {"name": "accord", "memory": 1}}, r"algorithm\b.*below 1"),
    ({"algorithm": {"name": "accord", "personal_from": 0}}, r"algorithm\b.*above 0"),
    ({"algorithm": {"name": "accord", "personal_from": 1}}, r"algorithm\b.*below 1"),
    ({"algorithm": {"name": "accord", "personal_from": "later"}}, r"algorithm\b.*'never'"),
    ({"algorithm": {"name": "accord", "personal_pull": -1}}, r"algorithm\b.*at least"),
    ({"algorithm": {"name": "accord", "lr": 0}}, r"algorithm\b.*above 0"),
    ({"algorithm": {"name": "accord", "lr": "fast"}}, r"algorithm\b.*'auto'"),
    (
        {"algorithm": {"name": "accord", "step": "absolute"}},
        r"algorithm\b.*lr = 'auto' is for step = 'relative'; give a number",
    ),
    ({"algorithm": {"name": "choco", "topk": 0}}, "algorithm.topk = 0.*above 0"),
    ({"algorithm": {"name": "choco", "topk": 1.5}}, "algorithm.topk = 1.5.*at most 1"),
    ({"algorithm": "choco", "schedule": "matching"}, "schedule and algorithm = 'choco': it needs every message"),
    ({"algorithm": "choco", "asynchronous": {}}, "asynchronous and algorithm = 'choco': it needs every message"),
    ({"algorithm": "dsgd", "compare": ["choco"], "schedule": "matching"}, "schedule and compare = 'choco': it needs"),
    ({"algorithm": "dsgd", "liars": CRAFTED}, r"liars\.kind = 'crafted': only masks .* dsgd sends real values"),
    ({"algorithm": "mce-pl", "compare": ["fl"], "liars": CRAFTED}, r"only masks .* fl sends real values; random"),
    ({"liars": {"count": 5}, **TEN}, r"liars\.count = 5: the guard cannot handle half of 10 agents or more.*at most 4"),
    ({"schedule": {"name": "redrawn", "every": 0}, "graph": "erdos-renyi"}, r"schedule\.every = 0: must be"),
    ({"schedule": {"name": "matching", "every": 0}}, r"schedule\.every = 0"),
    ({"schedule": {"name": "redrawn"}}, r"schedule\.name = 'redrawn': a ring graph is not random"),
    ({"schedule": "weekly"}, r"schedule\.name: unknown schedule 'weekly'; .*one-peer-exponential"),
    ({"schedule": {"name": "matching"}, "agents": 1, "retention": 0.5}, "agents must be 2 or more"),
    ({"schedule": "one-peer-exponential", "agents": 1, "retention": 0.5}, "agents must be 2 or more"),
    ({"schedule": "matching", "algorithm": "fl"}, "schedule: agents of fl use a server"),
    ({"schedule": {"name": "matching", "among": "nobody"}}, r"schedule\.among = 'nobody'"),
    ({"asynchronous": {}, "algorithm": "fl"}, "asynchronous: agents of fl wait for a server"),
    ({"asynchronous": {}, "compare": ["fl"]}, "asynchronous: agents of fl wait for a server"),
    ({"asynchronous": {}, "schedule": {"name": "matching"}}, "asynchronous: schedule needs synchronous rounds"),
    ({"asynchronous": {}, "liars": {"count": 1}}, "asynchronous: liars needs synchronous rounds"),
    ({"asynchronous": {}, "evaluation": {"unmixed": True}}, "asynchronous: evaluation.unmixed needs synchronous"),
    ({"asynchronous": {"speeds": [1.0, 0.1]}}, "asynchronous.speeds: 2 numbers for 4 agents"),
    ({"asynchronous": {"speeds": [1, 1, 0, 1]}}, "agent 2 has 0; every speed must be above 0"),
    ({"asynchronous": {"speeds": [1, 1, "x", 1]}}, "agent 2 has 'x'"),
    ({"asynchronous": {"speeds": [1, 1, float("nan"), 1]}}, "agent 2 has nan"),
    ({"asynchronous": {"speeds": 0.1}}, "must be a list with one number per agent"),
    ({"asynchronous": {"speeds": {"choices": []}}}, "asynchronous.speeds"),
    ({"asynchronous": {"weights": [1, 2]}}, "asynchronous.weights = .*must begin above 0 and not increase"),
    ({"asynchronous": {"weights": [0]}}, "must begin above 0"),
    ({"asynchronous": {"weights": [0.5]}}, "asynchronous.weights"),
    ({"asynchronous": {"weights": []}}, "asynchronous.weights"),
    ({"asynchronous": {"jitter": 1.0}}, "asynchronous.jitter"),
    ({"asynchronous": {"latency": -1}}, "asynchronous.latency"),
    ({"asynchronous": {"pace": 1}}, "asynchronous.pace: unknown key"),
    ({"deaths": {"after": 1, "agents": [0], "count": 1}}, "deaths: give either agents, a list of their"),
    ({"deaths": {"after": 1}}, "deaths: give either agents"),
    ({"deaths": {"after": 1, "agents": [4]}}, "deaths.agents: 4 must be from 0 to 3, and once in the list"),
    ({"deaths": {"after": 1, "agents": [1, 1]}}, "deaths.agents: 1 must be from 0 to 3, and once"),
    ({"deaths": {"after": 1, "agents": []}}, "deaths.agents"),
    ({"deaths": {"after": 1, "count": 4}}, "deaths: all 4 agents would die; at most 3 can"),
    ({"deaths": {"count": 1, "after": 4}}, "deaths.after = 4: must be below rounds = 4"),
    ({"deaths": {"count": 1, "after": -1}}, "deaths.after"),
    ({"deaths": {"after": 1, "count": 1, "returning": 2, "back": 3}}, "deaths.returning = 2: only 1 die"),
    ({"deaths": {"after": 1, "count": 1, "returning": 1}}, "deaths: returning and back belong together"),
    ({"deaths": {"after": 1, "count": 1, "back": 3}}, "deaths: returning and back belong together"),
    (
        {"deaths": {"after": 1, "count": 1, "returning": 1, "back": 2}},
        r"deaths\.back = 2: must be above after \+ 1 = 2",
    ),
    ({"deaths": {"after": 1, "count": 1, "returning": 1, "back": 5}}, "deaths.back = 5"),
    ({"deaths": {"after": 1, "count": 1}, "algorithm": "fl"}, "deaths: agents of fl wait for a server"),
    ({"deaths": {"after": 1, "count": 1}, "algorithm": "choco"}, "deaths and algorithm = 'choco': it needs every"),
    ({"deaths": {"after": 1, "count": 1}, "liars": {"count": 1}}, "deaths: liars needs synchronous rounds that all"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(
    changes: dict[str, Any],
    message: str,
    small: Callable[..., ExperimentConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(tomli_w.dumps({**small().table(), **changes}))
    with pytest.raises(PeermaskError, match=message) as caught:
        build(load_config(Path("config.toml")))
    for command in ("plan", "run"):
        assert re.search(message, refused(command, "config.toml")[len("peermask: ") : -1])
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
