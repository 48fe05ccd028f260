"""Profiles: what is measured, which retention it allows, and what fleets and nodes make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from commands import Call, Refused
from peermask.errors import ExportError
from peermask.exports.profile import Cost, Limits, Profile, masked_params, profile, read_profile, save_profile
from peermask.fleet.fleet import load_fleet
from peermask.models.architectures import models
from peermask.models.layout import find_layout

pytest.importorskip("onnxruntime")

MLP = {"name": "mlp", "hidden": [12]}


def cost(retention: float, kind: str, latency: float, memory: int = 1000, precision: str = "float32") -> Cost:
    return Cost.model_validate(
        {
            "retention": retention,
            "kind": kind,
            "precision": precision,
            "latency": latency,
            "memory": memory,
            "bytes": 100,
            "multiply_adds": 10,
        }
    )


def made(**changes: object) -> Profile:
    """Unstructured as slow at every retention, by filters the faster the smaller."""
    costs = [cost(r, "unstructured", 0.008) for r in (0.2, 0.4)]
    costs += [cost(r, "filters", 0.01 * r, memory=int(1e6 * r)) for r in (0.2, 0.4)]
    values = {"model": MLP, "shape": (1, 8, 8), "classes": 10, "machine": "m", "costs": costs, **changes}
    return Profile.model_validate(values)


def test_masks_of_a_profile_keep_what_an_agent_would() -> None:
    with torch.device("meta"):
        layout = find_layout(models["cnn"].make((1, 8, 8), 10, channels=(8, 6), hidden=16))
    scattered, filters = (masked_params(layout, 0.25, kind) for kind in ("unstructured", "filters"))
    first, second, *_, last = layout.masked
    assert int((scattered[second.span] != 0).sum()) == second.size // 4
    by_filter = (filters[first.span] != 0).view(8, -1)
    assert by_filter.any(1).sum() == by_filter.all(1).sum() == 2  # whole filters, a quarter of eight
    assert (filters[last.span] != 0).view(10, -1).any(1).all()  # no class is lost


def test_the_largest_retention_within_the_limits() -> None:
    assert made().retention("unstructured") == 0.4
    fast = made(limits=Limits(latency=0.003))
    assert (fast.retention("unstructured"), fast.retention("filters")) == (None, 0.2)
    assert made(limits=Limits(memory=3e5)).retention("filters") == 0.2
    assert made(precision="int8").retention("filters") is None  # nothing was measured


def test_a_model_is_measured_and_its_profile_read_back(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "p.json"
    code, out, _ = call(
        *("profile", "mlp", "--set", "hidden=[12]", "--shape", "1x8x8", "--retentions", "0.5"),
        *("--latency", "10s", "--memory", "1GB", "--to", path),
    )
    assert code == 0
    assert "by filters, float32: retention 0.5 meets 10000 ms and 1 GB" in out
    held = read_profile(path)
    assert held.model == MLP
    assert [(one.kind, one.precision) for one in held.costs] == [
        ("unstructured", "float32"),
        ("unstructured", "int8"),
        ("filters", "float32"),
        ("filters", "int8"),
    ]
    whole, _, cut, _ = held.costs
    # 64 x 12 and 12 x 10; linear layers keep nine tenths: 11 of 12 filters
    assert (whole.multiply_adds, cut.multiply_adds) == (64 * 12 + 12 * 10, 64 * 11 + 11 * 10)
    assert all(one.latency > 0 and one.bytes > 0 for one in held.costs)


def test_a_fleet_takes_its_retentions_from_profiles(tmp_path: Path, call: Call, refused: Refused) -> None:
    slow, fast, fleet = tmp_path / "slow.json", tmp_path / "fast.json", tmp_path / "fleet.toml"
    save_profile(slow, made(limits=Limits(latency=0.003)))
    save_profile(fast, made())
    new = ("--set", "agents=2", "--set", "graph.name=path", "--set", "model.name=mlp", "--set", "model.hidden=[12]")
    line = refused("fleet", "new", fleet, *new, "--profile", slow)
    assert "no retention that was measured meets its limits unstructured; by filters 0.2 does" in line
    by_filters = (*new, "--set", "mask.filter_threshold=0.1")
    assert call("fleet", "new", fleet, *by_filters, "--profile", slow, "--profile", fast)[0] == 0
    assert load_fleet(fleet).experiment.retention == (0.2, 0.4)
    line = refused("node", fleet, "--agent", 1, "--insecure", "--profile", slow)
    assert f"agent 1 keeps 0.4 of the weights, this device can run 0.2 according to {slow}" in line
    other = tmp_path / "other.toml"
    assert "3 profiles for 2 agents" in refused("fleet", "new", other, *new, *(["--profile", fast] * 3))
    assert "is of model" in refused("fleet", "new", other, "--set", "agents=2", "--profile", fast)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--latency", "5"), "--latency '5': must be a number and one of us, ms, s, such as 5ms"),
        (("--memory", "2 miles"), "--memory '2 miles': must be a number and one of B, kB, MB, GB, such as 2MB"),
        (("--shape", "32,32"), "--shape '32,32': must be sizes with x between them, such as 3x32x32"),
        (("--retentions", "0,1"), "--retentions '0,1': must be numbers in (0, 1]"),
        (("--precision", "int2"), "--precision 'int2' is not one of float32, int8"),
        (("--to", "nowhere/p.json"), "does not exist"),
        (("--set", "depth=3"), "model.depth: unknown key"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], words: str, refused: Refused) -> None:
    assert words in refused("profile", "mlp", *arguments)


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"model": MLP}))
    with pytest.raises(ExportError, match=r"is not a profile \(shape: Field required\); make it again"):
        read_profile(path)


def test_a_model_whose_channels_cannot_be_followed_is_measured_without_filters() -> None:
    measured = profile({"name": "resnet18", "width": 2}, (1, 8, 8), retentions=[0.5])
    assert {one.kind for one in measured.costs} == {"unstructured"}
    assert measured.obstacle == "layer 1 is a GroupNorm, through which dead filters cannot be followed"


def test_models_of_other_inputs_are_measured() -> None:
    tokens = profile({"name": "text", "vocabulary": 20, "width": 6, "channels": 8}, (9,), 2, retentions=[0.5])
    features = profile(MLP, (5,), 2, retentions=[0.5])
    assert {one.kind for one in features.costs} == {"unstructured", "filters"}
    assert features.costs[0].multiply_adds == 5 * 12 + 12 * 2
    assert all(one.latency > 0 for one in tokens.costs)
