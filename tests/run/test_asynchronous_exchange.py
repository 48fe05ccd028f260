"""Asynchronous runs in the simulator: one worked by hand, interrupted, played again, and refused where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from commands import Small, stop_after
from peermask import registry
from peermask.algorithms import algorithms
from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData
from peermask.config.file import make_config
from peermask.errors import ConfigError, RunError
from peermask.graph.mixing import Mixing
from peermask.run.build import build
from peermask.run.execution import Execution
from peermask.run.runner import resume_experiment, run_experiment
from peermask.run.trace import (
    LEARN,
    Trace,
    read_trace,
    round_lengths,
    speeds_of,
    trace_for,
    trace_of_speeds,
    write_trace,
)
from peermask.store.checkpoint import list_checkpoints
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows
from peermask.wire.schema import Payload

CPU = Execution(device="cpu")
UNEVEN = {"speeds": [0.2, 1.0, 1.0, 0.7], "weights": [100, 50, 1]}  # counts do not fit into a byte


@dataclass(frozen=True)
class State:
    weights: Tensor  # [A, P]
    ids: Tensor  # [A]


@pytest.fixture
def counting() -> str:
    """Each round adds the agent's number + 1 to all weights; agents mean what they hear."""

    class CountUp(Algorithm[State]):
        """For tests."""

        class Options(registry.Options):
            pass

        def init(self, agents: Agents) -> State:
            return State(torch.zeros(len(agents.ids), self.setting.network.layout.total), torch.tensor(agents.ids))

        def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:  # noqa: ARG002
            return replace(state, weights=state.weights + state.ids[:, None] + 1), state.ids.float()

        def share(self, state: State) -> Payload:
            return {"weights": state.weights}

        def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
            return replace(state, weights=mixing.closed_mean(received["weights"]))

        def local_model(self, state: State) -> Tensor:
            return state.weights

    algorithms.register("count-up")(CountUp)
    return "count-up"


def test_three_agents_by_hand(counting: str, small: Small, tmp_path: Path) -> None:
    """The trace of tests/run/test_trace.py. New messages count 2, and one of age 1 or more 1: only 1's first for 0's
    third round, ⌊10 · 2 / 13⌋ = 1.

    Every value is Σ a_j x_j / Σ a_j, where a message is what its agent had before it fused.
    """
    config = small(
        algorithm=counting, agents=3, rounds=3, retention=0.5, graph={"name": "path"},
        asynchronous={"speeds": [1.0, 0.5, 2 / 3], "jitter": 0.0, "grace": 0.0, "weights": [2, 1]},
    )  # fmt: skip
    run = run_experiment(config, tmp_path / "run", execution=CPU)
    zero_3 = Fraction(2 * 3 + 2, 3)  # own 3, agent 1's message of round 1 is 2
    one_1 = Fraction(2 + 2 + 3, 3)  # own 2, 0's message of round 2 is 2, 2's of round 1 is 3: all new
    two_2 = Fraction((3 + 3) + 2, 2)
    one_2 = ((one_1 + 2) + 3 + 6) / 3
    two_3 = ((two_2 + 3) + (one_1 + 2)) / 2
    one_3 = ((one_2 + 2) + 3 + (two_2 + 3)) / 3
    assert (zero_3, one_3, two_3) == (Fraction(8, 3), Fraction(148, 27), Fraction(17, 3))
    for agent, expected in enumerate((zero_3, one_3, two_3)):
        values = torch.cat([p.flatten() for p in run.local_models()[agent].parameters()])
        torch.testing.assert_close(values, torch.full_like(values, float(expected)))


def test_a_death_by_hand(counting: str, small: Small, tmp_path: Path) -> None:
    """0 - 1 - 2, and 2 dies after the first round: its message, 3, counts half of a new one in the second round and a
    quarter in the third. In the second run it returns in the third round, from the 2.5 that it had."""
    config = {"algorithm": counting, "agents": 3, "rounds": 3, "retention": 0.5, "graph": {"name": "path"}}
    one_2 = (2 * (2 + 2) + 2 * (1.5 + 1) + 3) / 5
    zero_3, one_3 = (2.5 + 4) / 2 + 1, one_2 + 2
    for returns, expected in (
        ({}, [(zero_3 + one_3) / 2, (4 * one_3 + 4 * zero_3 + 3) / 9, 2.5]),
        ({"returning": 1, "back": 3}, [(zero_3 + one_3) / 2, (zero_3 + one_3 + 5.5) / 3, (one_3 + 5.5) / 2]),
    ):
        run = run_experiment(
            small(**config, deaths={"after": 1, "agents": [2], **returns}), tmp_path / str(len(returns))
        )
        found = [next(model.parameters()).flatten()[0].item() for model in run.local_models()]
        assert found == pytest.approx(expected)
    rows = read_rows(tmp_path / "0" / "traffic.csv")
    assert "".join(row["links"] for row in rows) == "121" + "110" + "110"  # nothing from or to the dead


def test_until_a_death_all_is_as_without(small: Small, tmp_path: Path) -> None:
    config = {"rounds": 4, "evaluation": {"every": 1}}
    run_experiment(small(**config), tmp_path / "all", execution=CPU)
    run_experiment(small(**config, deaths={"after": 2, "count": 1}), tmp_path / "dead", execution=CPU)
    for table, same in (("metrics.csv", True), ("traffic.csv", False)):
        alive, dead = (without_seconds(tmp_path / name / table) for name in ("all", "dead"))
        assert alive[:8] == dead[:8]
        assert same or alive[8:] != dead[8:]


def test_the_table_has_what_was_taken(counting: str, small: Small, tmp_path: Path) -> None:
    """In the order of test_trace.py, six halves a row: who took a message it had not used before."""
    config = small(
        algorithm=counting, agents=3, rounds=3, retention=0.5, graph={"name": "path"},
        asynchronous={"speeds": [1.0, 0.5, 2 / 3], "jitter": 0.0, "grace": 0.0},
    )  # fmt: skip
    run_experiment(config, tmp_path / "run", execution=CPU)
    rows = read_rows(tmp_path / "run" / "traffic.csv")
    assert [(row["round"], row["agent"], row["links"]) for row in rows] == [
        ("1", "0", "0"), ("1", "1", "0"), ("1", "2", "0"),
        ("2", "0", "1"), ("2", "1", "1"), ("2", "2", "1"),  # 1 takes from 0 and 2; then 2 from 1
        ("3", "0", "1"), ("3", "1", "2"), ("3", "2", "2"),  # 0 from 1; 1 from 0 and 2; 2 from 1; 1 from 2
    ]  # fmt: skip
    assert [row["kind"] for row in rows if row["links"] == "0"] == [""] * 3


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("asynchronous", [None, UNEVEN])
def test_deaths_are_the_same_after_an_interruption(
    after: int, asynchronous: object, small: Small, tmp_path: Path
) -> None:
    deaths = {"after": after, "count": 2, "returning": 1, "back": 5}
    config = small(algorithm="accord", rounds=6, deaths=deaths, asynchronous=asynchronous)
    whole = run_experiment(config, tmp_path / "whole", execution=CPU)
    for stop in (1, 2, 4):
        assert run_experiment(config, tmp_path / str(stop), execution=stop_after(stop + 1)).status == "interrupted"
        assert resume_experiment(tmp_path / str(stop), CPU).hash == whole.hash
        assert without_seconds(tmp_path / str(stop) / "traffic.csv") == without_seconds(whole.root / "traffic.csv")


def without_seconds(path: Path) -> list[dict[str, str]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_rows(path)]


def test_a_replay_goes_on_with_the_trace_it_began_with(small: Small, tmp_path: Path) -> None:
    config = small(asynchronous=UNEVEN)
    expected = run_experiment(config, tmp_path / "whole", execution=CPU).hash
    write_trace(tmp_path / "trace.csv", trace_for(build(config), RunFolder(tmp_path / "none")))
    table = config.table()
    table["asynchronous"]["trace"] = str(tmp_path / "trace.csv")
    run_experiment(make_config(table), tmp_path / "cut", execution=stop_after(2))
    (tmp_path / "trace.csv").unlink()
    assert resume_experiment(tmp_path / "cut", CPU).hash == expected


def test_what_must_not_change_the_result_does_not(small: Small, tmp_path: Path) -> None:
    config = small(asynchronous=UNEVEN)
    one = run_experiment(config, tmp_path / "one", execution=Execution(device="cpu", workers=1))
    other = run_experiment(config, tmp_path / "other", execution=Execution(device="auto", workers=3, chunk=2))
    assert one.hash == other.hash
    assert one.hash != run_experiment(small(), tmp_path / "together", execution=CPU).hash


def test_only_messages_that_are_still_needed_are_kept(small: Small, tmp_path: Path) -> None:
    config = small(rounds=40, asynchronous=UNEVEN)
    trace = trace_for(build(config), RunFolder(tmp_path))
    for rounds in (1, 9, 38):
        run_experiment(config, tmp_path / str(rounds), execution=stop_after(rounds))
        (path,) = list_checkpoints(tmp_path / str(rounds) / "checkpoints")[-1:]
        with safe_open(path, "pt") as file:
            held = file.get_tensor("sent/.held").tolist()
        played = trace.order[: 2 * 4 * rounds]
        needed = [[i, k] for i, k, half in played if half == LEARN and trace.last_uses[i, k - 1] >= len(played)]
        assert sorted(held) == sorted(needed)
        assert len(held) < 4 * rounds or rounds == 1


def test_speeds_are_given_drawn_or_alike(small: Small) -> None:
    drawn = speeds_of(build(small(agents=50, retention=0.3, asynchronous={"speeds": {"choices": [0.1, 1.0]}})))
    assert set(drawn) == {0.1, 1.0}
    assert speeds_of(build(small(asynchronous=UNEVEN))) == (0.2, 1.0, 1.0, 0.7)
    assert speeds_of(build(small(asynchronous={}))) == (1.0,) * 4


def test_a_config_without_it_is_what_it_was(small: Small) -> None:
    assert "asynchronous" not in small().table()


def test_it_cannot_be_extended(small: Small, tmp_path: Path) -> None:
    run_experiment(small(asynchronous={}), tmp_path / "run", execution=CPU)
    with pytest.raises(RunError, match="has asynchronous: some agents may have ended long before"):
        resume_experiment(tmp_path / "run", CPU, ["rounds=8"])


@pytest.fixture
def trace(small: Small) -> Trace:
    experiment = build(small(asynchronous={}))
    return trace_of_speeds(experiment.mixing.links, round_lengths([1.0] * 4, 4, 0.2, 0))[0]


def cyclic(lines: list[str]) -> list[str]:
    """The first rounds of agents 0 and 1 use each other's second."""
    return [f"{line.rpartition(',')[0]},2" if line.startswith(("1,0,1,", "1,1,0,")) else line for line in lines]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-3], "has no row of agent 2 in round 4 and its neighbour 3"),
        (lambda lines: [*lines[:-1], "4,3,2,9"], "line 33: round 9 of agent 2 does not exist; .* has rounds 1 to 4"),
        (lambda lines: [*lines, "5,3,2,1"], "line 34: round 5 does not exist"),
        (lambda lines: [*lines, "4,0,2,1"], "line 34: agent 0 has no link to agent 2"),
        (lambda lines: [*lines, lines[-1]], "line 34: agent 3 has round 4 and agent 2 twice"),
        (lambda lines: [*lines[:-1], "4,3,2,x"], "line 33: heard 'x' is not a valid number"),
        (cyclic, "uses round 2 of agent .* which builds on that round in turn"),
    ],
)
def test_a_trace_that_cannot_be_played(
    change: Callable[[list[str]], list[str]], message: str, tmp_path: Path, trace: Trace
) -> None:
    path = tmp_path / "trace.csv"
    write_trace(path, trace)
    lines = path.read_text().splitlines()
    assert (read_trace(path, trace.links, trace.rounds).heard == trace.heard).all()
    path.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises((RunError, ConfigError), match=message) as caught:
        read_trace(path, trace.links, trace.rounds)
    assert "\n" not in str(caught.value)


def test_a_trace_that_does_not_exist(small: Small, tmp_path: Path) -> None:
    config = small(asynchronous={"trace": str(tmp_path / "none.csv")})
    with pytest.raises(ConfigError, match=r"none\.csv does not exist; asynchronous\.trace names"):
        run_experiment(config, tmp_path / "run", execution=CPU)
