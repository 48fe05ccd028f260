"""Recordings against plain rounds. On a CPU a recording computes again, from the same memory into the same memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from commands import Small
from peermask.algorithms import algorithms
from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.run.assemble import build_simulator, rehearse, wake
from peermask.run.build import build
from peermask.run.cuda_graphs import Recorded, Unrecordable, tensors_of, with_tensors
from peermask.run.feed import Prefetch
from peermask.run.simulator import Simulator

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass
class Again:
    """Does what a function did, and puts the results where they were."""

    function: Callable[[], Any] = field(default=lambda: None)
    results: Any = None
    replays: int = 0

    def record(self, function: Callable[[], T]) -> T:
        self.function, self.results = function, (results := function())
        return results

    def replay(self) -> None:
        self.replays += 1
        for place, value in zip(_tensors(self.results), _tensors(self.function()), strict=True):
            place.copy_(value)


def recording(made: list[Again]) -> Again:
    made.append(Again())
    return made[-1]


def _tensors(result: Any) -> list[Tensor]:
    state, *losses = result if isinstance(result, tuple) else (result,)
    return [*tensors_of(state).values(), *losses]


def simulator_of(name: str, **values: Any) -> Simulator:
    options = {"agents": 3, "rounds": 11, "retention": [0.2, 0.4, 0.4], "batch_size": 8, "model": "mlp"}
    config = make_config(options | {"dataset": "digits", "algorithm": {"name": name}} | values)
    return build_simulator(build(config), CPU, chunk=3)


def played(simulator: Simulator, rounds: int, batches: int = 1, of: int = 11) -> list[Tensor]:
    with simulator:
        losses = [simulator.play(Clock(number, of, batches=batches)).losses for number in range(1, rounds + 1)]
    return [*simulator.tensors().values(), *losses]


def assert_same_rounds(plain: Simulator, other: Simulator, rounds: int, batches: int = 1, of: int = 11) -> None:
    for wanted, found in zip(played(plain, rounds, batches, of), played(other, rounds, batches, of), strict=True):
        assert torch.equal(wanted, found)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("name", [entry.name for entry in algorithms])
def test_recorded_rounds_end_in_the_same_state(name: str, batches: int, caplog: pytest.LogCaptureFixture) -> None:
    plain, replaying = simulator_of(name), simulator_of(name)
    made: list[Again] = []
    replaying.steps = Recorded(replaying.algorithm, partial(recording, made))
    assert_same_rounds(plain, replaying, 11, batches)
    assert not caplog.messages
    if name in ("mce-pl", "dsgd", "fl"):
        assert len(made) >= 2
        assert min(each.replays for each in made) >= 3


def test_each_part_of_a_run_has_its_own_recordings() -> None:
    """accord's personal mask starts after 10 of 20 rounds: `learn` and `fuse` of even and odd rounds, in both parts."""
    halves: dict[str, Any] = {"algorithm": {"name": "accord", "personal_from": 0.5}}
    plain, replaying = simulator_of("accord", **halves), simulator_of("accord", **halves)
    made: list[Again] = []
    replaying.steps = Recorded(replaying.algorithm, partial(recording, made))
    assert_same_rounds(plain, replaying, 20, of=20)
    assert [each.replays for each in made] == [3] * 8


@pytest.mark.parametrize("algorithm", ["mce-pl", "dsgd"])
def test_a_rate_that_changes_is_read_anew_in_every_replay(algorithm: str) -> None:
    scheduled = {"algorithm": {"name": algorithm, "schedule": "cosine"}}
    plain, replaying = simulator_of(algorithm, **scheduled), simulator_of(algorithm, **scheduled)
    replaying.steps = Recorded(replaying.algorithm, Again)
    assert_same_rounds(plain, replaying, 11)


def test_what_cannot_be_recorded_is_said_once_and_played_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Again):
        def record(self, function: Callable[[], T]) -> T:  # noqa: ARG002
            raise Unrecordable("no memory")

    plain, refused = simulator_of("mce-pl"), simulator_of("mce-pl")
    refused.steps = Recorded(refused.algorithm, Refusing)
    assert_same_rounds(plain, refused, 6)
    assert caplog.messages == ["rounds run without CUDA graphs: learn cannot be recorded: no memory"]


@pytest.mark.parametrize(("declared", "recordings"), [((), 0), (("fuse",), 2), (("learn", "fuse"), 4)])
def test_only_declared_steps_are_recorded(declared: tuple[str, ...], recordings: int) -> None:
    """Of even and odd rounds."""
    plain, replaying = simulator_of("dsgd"), simulator_of("dsgd")
    made: list[Again] = []

    class Declaring(type(replaying.algorithm)):  # type: ignore[misc]
        recordable = declared

    replaying.algorithm.__class__ = Declaring
    replaying.steps = Recorded(replaying.algorithm, partial(recording, made))
    assert_same_rounds(plain, replaying, 11)
    assert len(made) == recordings


@pytest.mark.parametrize("name", ["dis-pfl", "lottery-dsgd"])
def test_a_false_declaration_is_said_and_changes_no_result(name: str, caplog: pytest.LogCaptureFixture) -> None:
    plain, lying = simulator_of(name), simulator_of(name)
    lying.algorithm.recordable = ("learn",)  # type: ignore[misc]
    lying.steps = Recorded(lying.algorithm, Again)
    assert_same_rounds(plain, lying, 11)
    reason = "it reads clock.round, which a recording would repeat"
    assert caplog.messages == [f"rounds run without CUDA graphs: learn cannot be recorded: {reason}"]


def test_restored_states_are_taken_over() -> None:
    plain, replaying = simulator_of("accord"), simulator_of("accord")
    replaying.steps = Recorded(replaying.algorithm, Again)
    for simulator in (plain, replaying):
        with simulator:
            for number in range(1, 9):
                simulator.play(Clock(number, 11))
            saved = {name: tensor.clone() for name, tensor in simulator.tensors().items()}
            simulator.play(Clock(9, 11))
            simulator.restore(saved)
            simulator.play(Clock(9, 11))
    for name, wanted in plain.tensors().items():
        assert torch.equal(wanted, replaying.tensors()[name]), name


@dataclass(frozen=True)
class Nest:
    scores: Tensor
    votes: Tensor | None = None
    above: Nest | None = None


def test_a_state_within_a_state_is_named_after_it_and_what_is_not_there_is_left_out() -> None:
    state = Nest(torch.zeros(1), above=Nest(torch.ones(1), votes=torch.ones(2)))
    assert {name: len(tensor) for name, tensor in tensors_of(state).items()} == {
        "scores": 1,
        "above.scores": 1,
        "above.votes": 2,
    }


def test_there_and_back() -> None:
    state = Nest(torch.zeros(1), above=Nest(torch.ones(1)))
    other = with_tensors(state, {"scores": torch.full((1,), 5.0), "above.scores": torch.full((1,), 7.0)})
    assert (other.scores.item(), other.above.scores.item()) == (5.0, 7.0)
    assert (state.scores.item(), tensors_of(other)["above.scores"].item()) == (0.0, 7.0)


def test_draws_of_the_next_round(small: Small) -> None:
    feed = build_simulator(build(small()), torch.device("cpu")).feeds[0]
    drawn, first, second = Prefetch(), Clock(1, 9), Clock(2, 9)
    drawn.draws(feed, first, [0, 1])
    assert not drawn.ahead
    drawn.start()
    assert list(drawn.ahead) == [second]
    for step, (index,) in enumerate(drawn.draws(feed, second, [0, 1])):
        assert torch.equal(index, feed.draw(second, step)[0])
    assert not drawn.ahead


def test_a_rehearsal_calls_what_a_round_and_an_evaluation_do() -> None:
    rehearse(torch.device("cpu"))  # where it is called on a GPU, errors are left to the first round


def test_a_cpu_is_awake() -> None:
    before = threading.active_count()
    wake(torch.device("cpu"))
    assert threading.active_count() == before
