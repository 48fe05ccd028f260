"""The fleet file: one file for a deployment, and one clear line for everything that can be wrong with it."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w
from fleet_cases import tiny, tiny_fleet, written

from peermask.algorithms import algorithms
from peermask.errors import NodeError
from peermask.fleet.fleet import load_fleet, new_fleet, split_address


def edited(folder, change):
    """A fleet file with something changed in it."""
    path = written(folder, new_fleet(tiny()))
    values = tomllib.loads(path.read_text())
    change(values)
    path.write_text(tomli_w.dumps(values))
    return path


def test_what_is_written_is_what_is_read(tmp_path):
    fleet = tiny_fleet()
    assert load_fleet(written(tmp_path, fleet)) == fleet


def test_the_links_are_those_of_the_graph():
    fleet = new_fleet(tiny(agents=5))
    assert fleet.links == ((0, 1), (0, 4), (1, 2), (2, 3), (3, 4))
    assert fleet.neighbours(0) == (1, 4)
    assert fleet.neighbours(3) == (2, 4)


def test_a_method_that_hears_all_links_all(monkeypatch):
    monkeypatch.setattr(algorithms["mce-pl"].make, "hears_all", True, raising=False)
    assert new_fleet(tiny()).links == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def test_agents_of_one_host_get_ports_in_a_row():
    assert [m.address for m in new_fleet(tiny(), ["10.0.0.1"], 9000).agents] == [
        f"10.0.0.1:{port}" for port in (9000, 9001, 9002, 9003)
    ]
    hosts = ["a.local", "b.local", "a.local", "c.local"]
    assert [m.address for m in new_fleet(tiny(), hosts, 9000).agents] == [
        "a.local:9000", "b.local:9000", "a.local:9001", "c.local:9000",
    ]  # fmt: skip


def test_every_fleet_is_a_run_of_its_own():
    assert new_fleet(tiny()).run != new_fleet(tiny()).run


def test_only_the_first_algorithm_of_a_comparison_is_deployed():
    assert new_fleet(tiny(compare=[{"name": "ind-mask"}])).experiment.compare == ()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda v: v.update(misssing="last"), "misssing: unknown key; did you mean 'missing'"),
        (lambda v: v.update(missing="never"), "missing = 'never'"),
        (lambda v: v.update(round_deadline=0), "round_deadline = 0"),
        (lambda v: v.update(run="x"), "run = 'x'"),
        (lambda v: v["experiment"].update(liars={"count": 1}), "experiment.liars: only the simulator supports liars"),
        (lambda v: v["experiment"].update(deaths={"after": 1, "count": 1}), "experiment.deaths: only the simulator"),
        (lambda v: v.pop("run"), "run: must be given"),
        (lambda v: v["agents"].pop(), r"agents are numbered \[0, 1, 2\]"),
        (lambda v: v["agents"][2].update(agent=7), r"agents are numbered \[0, 1, 7, 3\]"),
        (lambda v: v["agents"][2].update(address="127.0.0.1:7451"), "agents 1 and 2 have the same address"),
        (lambda v: v["agents"][2].update(address="127.0.0.1"), "address '127.0.0.1' is not host:port"),
        (lambda v: v["agents"][2].update(address="127.0.0.1:70000"), "is not host:port"),
        (lambda v: v["agents"][2].update(listen="*:7450"), "is not host:port"),
        (lambda v: v["agents"][2].update(address="[::1::2]:7450"), "is not host:port"),
        (lambda v: v["links"].pop(), "links: 2 - 3 is missing"),
        (lambda v: v["links"].append([0, 2]), "links: 0 - 2 is not a link of the experiment"),
        (lambda v: v["experiment"].update(compare=[{"name": "ind-mask"}]), "a fleet runs one algorithm"),
        (lambda v: v["experiment"].update(stop={"patience": 3}), "no agent knows the mean accuracy"),
        (lambda v: v["experiment"].update(retention=2), "retention = 2"),
        (lambda v: v["experiment"]["graph"].update(name="rong"), "unknown topology 'rong'; did you mean 'ring'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, change, line):
    with pytest.raises(NodeError, match=line) as caught:
        load_fleet(edited(tmp_path, change))
    assert "\n" not in str(caught.value)
    assert "fleet.toml" in str(caught.value)


def test_a_file_that_is_not_there_or_not_toml(tmp_path):
    with pytest.raises(NodeError, match="does not exist; write one with `peermask fleet new"):
        load_fleet(tmp_path / "fleet.toml")
    (tmp_path / "fleet.toml").write_text("run = ")
    with pytest.raises(NodeError, match="is not valid TOML"):
        load_fleet(tmp_path / "fleet.toml")
    with pytest.raises(NodeError, match="cannot be read"):
        load_fleet(tmp_path)


def test_an_agent_that_does_not_exist():
    with pytest.raises(NodeError, match="agent 4 does not exist; this fleet has agents 0 to 3"):
        new_fleet(tiny()).member(4)


@pytest.mark.parametrize(("text", "parts"), [("pi.local:7450", ("pi.local", 7450)), ("[fe80::1]:1", ("fe80::1", 1))])
def test_addresses(text, parts):
    assert split_address(text) == parts
