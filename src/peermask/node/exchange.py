"""The exchange of a node: publish this agent's message, pull the neighbours', and mix what was heard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from peermask.algorithms.contract import Clock, Payload
from peermask.graph.mixing import Mixing
from peermask.node.puller import Absence, Heard, Puller
from peermask.node.responder import Responder
from peermask.wire import Schema


class NodeExchange:
    """An `Exchange` for the one agent of a node: A = 1, K = itself and those it heard, in the order of agents."""

    def __init__(self, agent: int, mixing: Mixing, sizes: Sequence[int], responder: Responder, puller: Puller) -> None:
        self.agent, self.mixing, self.sizes = agent, mixing, sizes  # mixing: the agent's row [1, N]
        self.responder, self.puller = responder, puller
        self.own: Payload = {}  # of the last round, as are the two below
        self.absent: list[Absence] = []
        self.behind: int | None = None

    def __call__(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        own = self.own = shared[0]
        if not own:  # a method that sends nothing waits for nobody
            return own, [self.mixing]
        schema = self.publish(clock.round, own)
        heard = self.puller.pull(clock.round, schema)
        self.absent, self.behind = heard.absent, heard.behind
        columns = torch.tensor(sorted([self.agent, *heard.payloads]))  # [K]
        received = {name: self._stacked(name, leaf, columns, heard) for name, leaf in own.items()}
        return received, [self.mixing.restrict(columns).to(next(iter(own.values())).device)]

    def publish(self, round: int, own: Payload) -> Schema:
        """Hand out this agent's message [1, ...] of a round from now on."""
        rows = {name: leaf[0].flatten().cpu().numpy().copy() for name, leaf in own.items()}
        schema = Schema.of(rows, self.sizes)
        self.responder.publish(round, rows, schema)
        return schema

    def _stacked(self, name: str, own: torch.Tensor, columns: torch.Tensor, heard: Heard) -> torch.Tensor:
        leaves = [
            own[0] if j == self.agent else torch.from_numpy(np.array(heard.payloads[j][name])).view(own[0].shape)
            for j in columns.tolist()
        ]
        return torch.stack([leaf.to(own.device) for leaf in leaves])  # [K, ...]
