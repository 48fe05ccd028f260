"""The contract between an algorithm and everything else.

An algorithm is a few pure functions over a frozen state whose tensors have a leading agent axis A:

    state         = init(agents)
    state, loss   = learn(state, data, clock)              private: gradient steps on local data
    payload       = share(state)                           public: all that may leave an agent
    state         = fuse(state, received, mixing, clock)   received [K, ...], mixing rows [A, K]
    params        = local_model(state)                     what is evaluated, exported, deployed [A, P]

The simulator calls them with A = all agents or a chunk of them and K = all; a node on a network with A = 1 and K =
itself and its neighbours. An algorithm cannot tell the two apart. `learn` is called once for every batch of a round,
with the state that the previous call returned. Between `learn` and `fuse` a state may carry tensors that are None at
the end of a round; those are never saved.

Everything else that the package asks of an algorithm is declared on `Algorithm` below, with its default. Algorithms
inherit from that protocol, and from no other algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from peermask.compute.network import Batch, Network
from peermask.graph.mixing import Mixing
from peermask.masks.masker import Masker
from peermask.models.outputs import Readout
from peermask.registry import Registry
from peermask.wire.schema import Payload

# Shapes: A agents of this chunk, K messages received, P_w masked weights, P all parameters, L masked layers


@dataclass(frozen=True)
class Clock:
    """The current round and batch.

    Attributes:
        round: From 1.
        rounds: How many there are.
        batch: The batch of the round, from 0.
        batches: How many a round has (`local_batches`).

    Examples:
        >>> import peermask
        >>> clock = peermask.Clock(round=3, rounds=4)
        >>> clock.progress, clock.is_last_batch
        (0.5, True)
    """

    round: int
    rounds: int
    batch: int = 0
    batches: int = 1

    @property
    def progress(self) -> float:
        """0 in the first round, towards 1 in the last."""
        return (self.round - 1) / self.rounds

    @property
    def is_last_batch(self) -> bool:
        """Whether the exchange follows."""
        return self.batch == self.batches - 1

    def is_after(self, share: float) -> bool:
        """Whether a share of all rounds is over before this one. What a round computes may depend on it."""
        return self.round > share * self.rounds

    def at(self, batch: int) -> Clock:
        """The same round at another of its batches."""
        return replace(self, batch=batch)

    def varying(self, of: Callable[[float], float]) -> float | Tensor:
        """A number that changes with progress.

        Args:
            of: The number as a function of `progress`.

        Returns:
            The number; on a GPU that replays a recorded round, a tensor that is updated before each replay.

        Examples:
            >>> import peermask
            >>> peermask.Clock(round=1, rounds=4).varying(lambda progress: 0.1 * (1 - progress))
            0.1
        """
        return of(self.progress)


@dataclass(frozen=True)
class Agents:
    """The agents of a state, and what each may keep.

    Attributes:
        ids: Their numbers, A of them.
        keep: [A, L] int64: K_l, how many weights of each masked layer an agent keeps.
        retention: [A] float32: r_i.

    Examples:
        >>> import peermask, torch
        >>> agents = peermask.Agents((0, 1), torch.tensor([[30, 9], [10, 9]]), torch.tensor([0.3, 0.1]))
        >>> agents.rows(slice(1, 2)).ids
        (1,)
    """

    ids: tuple[int, ...]
    keep: Tensor
    retention: Tensor

    def rows(self, rows: slice) -> Agents:
        """Return some of these agents."""
        return Agents(self.ids[rows], self.keep[rows], self.retention[rows])

    def to(self, device: torch.device) -> Agents:
        """Move the tensors to a device."""
        return Agents(self.ids, self.keep.to(device), self.retention.to(device))


class LocalData(Protocol):
    """The private data of the agents of one chunk.

    Examples:
        >>> import peermask, torch
        >>> from peermask.run.assemble import assemble
        >>> from peermask.run.build import build
        >>> experiment = build(peermask.make_config({"agents": 4, "model": "mlp", "batch_size": 8}))
        >>> _, data = assemble(experiment, torch.device("cpu"))
        >>> batch = data.batch(peermask.Clock(round=1, rounds=10))
        >>> batch.inputs.shape, batch.targets.shape
        (torch.Size([4, 8, 1, 8, 8]), torch.Size([4, 8]))
        >>> data.sizes.shape
        torch.Size([4])
    """

    @property
    def sizes(self) -> Tensor:
        """[A] float32: how many training samples each agent has."""
        ...

    def batch(self, clock: Clock, step: int = 0) -> Batch:
        """A batch of every agent's training samples.

        Args:
            clock: The current round and batch, which determine the draw.
            step: For further batches at the same clock: 1, 2, ...

        Returns:
            Inputs [A, B, ...] and targets [A, B, ...].
        """
        ...

    def validation_accuracy(self, params: Tensor) -> Tensor:
        """Test models on each agent's held-out samples.

        Args:
            params: [A, P], a whole parameter vector per agent.

        Returns:
            [A]: accuracy (or F1, or R²) by the readout that counts.
        """
        ...


@dataclass(frozen=True)
class Setting:
    """Parts that all agents have in common.

    Attributes:
        network: Computes gradients and outputs of all agents of a state: `network.gradient(params, batch)`.
        masker: The frozen weights, and how scores become masks and models.
        seed: Of the experiment, for `peermask.streams`.
        retentions: r_i of every agent.
        links_change: Whether agents hear others in each round.

    Examples:
        >>> import peermask, torch
        >>> from peermask.run.assemble import assemble
        >>> from peermask.run.build import build
        >>> experiment = build(peermask.make_config({"agents": 4, "model": "mlp", "retention": 0.3, "seed": 7}))
        >>> algorithm, _ = assemble(experiment, torch.device("cpu"))
        >>> algorithm.setting.seed, algorithm.setting.retentions
        (7, (0.3, 0.3, 0.3, 0.3))
    """

    network: Network
    masker: Masker
    seed: int
    retentions: tuple[float, ...]
    links_change: bool = False


State = TypeVar("State")


MaskCounts = dict[str, tuple[Tensor, Tensor]]  # mask leaf -> the least and the most entries of each layer, [A, L]


class Algorithm(Protocol[State]):
    """Interface of an algorithm: five functions over a state whose tensors have a leading agent axis.

    Inherit from this class, register it, and a config can name it; docs/adding.md has a complete one.

    Examples:
        >>> from peermask.algorithms import algorithms
        >>> algorithms["mce-pl"].make.hears_all, algorithms["fl"].make.hears_all
        (False, True)
    """

    hears_all: ClassVar[bool] = False
    """Whether agents use a server, one message there and one back, instead of their neighbours."""

    needs_every_message: ClassVar[bool] = False
    """Whether a message that is lost, or comes late, would spoil all later rounds."""

    over_frozen_weights: ClassVar[bool] = False
    """Whether a personal model is the frozen weights under a mask, so that seed and mask are all of it."""

    common_retention: ClassVar[bool] = False
    """Whether every agent keeps only as many weights as the agent with the smallest retention can."""

    readout: ClassVar[Readout] = "all"
    """Which labels an agent's answer is chosen among unless a config says otherwise."""

    @property
    def recordable(self) -> tuple[str, ...]:
        """Steps, of "learn" and "fuse", which a GPU may record in one round and replay in others (a CUDA graph).

        Such a step reads no value of a tensor on the host, and no shape depends on one. Of the clock it uses only
        `batch`, `varying` and `is_after`, of the data only batches and sizes. tests/contract proves it on a CPU.
        """
        return ()

    options: Any
    setting: Setting

    def __init__(self, options: Any, setting: Setting) -> None:
        self.options, self.setting = options, setting

    @property
    def masker(self) -> Masker:
        """Frozen weights, and how scores become masks and models."""
        return self.setting.masker

    def init(self, agents: Agents) -> State:
        """The first state of these agents."""
        ...

    def learn(self, state: State, data: LocalData, clock: Clock) -> tuple[State, Tensor]:
        """One batch of local training: the new state, and each agent's loss [A]."""
        ...

    def share(self, state: State) -> Payload:
        """Everything that may leave an agent: named tensors, one row per agent."""
        ...

    def fuse(self, state: State, received: Payload, mixing: Mixing, clock: Clock) -> State:
        """Combine what was received, [K, ...], with the own state."""
        ...

    def join(self, state: State, received: Payload, mixing: Mixing) -> State:  # noqa: ARG002
        """Move the first state of an agent that begins in the middle of a run to what the others have learned,
        by their messages [K, ...]. It is called before the first `learn`; the default leaves that to `fuse`."""
        return state

    def local_model(self, state: State) -> Tensor:
        """[A, P]: the parameters that are tested, exported and deployed."""
        ...

    def opening(self, agents: Agents) -> Payload:  # noqa: ARG002
        """[A, ...] on the CPU: a payload close to the first, which depends only on config and seed, bit for bit on any
        machine. Receivers compute it themselves, and the first message has only the difference. Empty: none."""
        return {}

    def unmixed_model(self, payload: Payload) -> Tensor | None:  # noqa: ARG002
        """[K, ...] -> [K, P]: the models in messages, to be tested before they are mixed; None: they have none."""
        return None

    def mask_counts(self, agents: Agents) -> MaskCounts:  # noqa: ARG002
        """How many entries an honest agent's masks have; a node rejects other masks of a neighbour."""
        return {}


algorithms: Registry[type[Algorithm[Any]]] = Registry("algorithm")


def messages_sent(name: str, links: Sequence[int]) -> list[int]:
    """Messages of each agent in a round: one per directed link, or one to a server and one back."""
    return [2] * len(links) if algorithms[name].make.hears_all else list(links)
