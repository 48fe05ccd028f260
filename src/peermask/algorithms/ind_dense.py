"""ind-dense: every agent trains the whole network alone; the paper's "weight update"."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, algorithms
from peermask.algorithms.descent import MomentumOptions, common_start, first_velocity, momentum_step
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class State:
    params: Tensor  # [A, P] x
    velocity: Tensor | None = None  # [A, P], where momentum is on


@algorithms.register("ind-dense")
class IndDense(Algorithm[State]):
    """Each agent trains all weights on its own data; nothing is pruned or exchanged."""

    recordable = ("learn", "fuse")

    Options = MomentumOptions

    options: MomentumOptions

    def init(self, agents: Agents) -> State:
        params = common_start(self.masker, agents)
        return State(params, first_velocity(params, self.options.momentum))

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        """x ← x − η (g + ω x)."""
        batch = data.batch(clock)
        step, velocity, loss = momentum_step(self.setting, state.params, state.velocity, batch, self.options, clock)
        return State(state.params - step, velocity), loss

    def share(self, state: State) -> Payload:  # noqa: ARG002
        return {}

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:  # noqa: ARG002
        return state

    def local_model(self, state: State) -> Tensor:
        return state.params
