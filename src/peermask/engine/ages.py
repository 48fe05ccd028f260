"""How much a message counts by its age in asynchronous runs.

The age of a message of round l in round k of its receiver is how far it is behind, in tenths of the receiver's rounds
and ten: ⌊10 max(0, k − l) / (k + 10)⌋, 0 to 9. A message of the round before is always new. A number of rounds alone
would not do: an agent six rounds behind in the tenth round has learned half of what its receiver has, in the hundredth
nearly all. A message of age a counts `weights[a]` times, an older one as often as the last of them, the agent's own as
often as a new one. If all messages of a round together count less than a quarter of a new one, none is used: an agent
whose only neighbour is far slower would follow a model that has learned next to nothing. Weights are whole numbers, so
that votes stay counts, and a node's fusion equals the simulator's bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from peermask.graph.mixing import Mixing

TENTHS = 10  # distinct ages, and rounds in which there are hardly any
LEAST = 4  # messages that together count less than this part of a new one are not used


@dataclass(frozen=True)
class Ages:
    weights: tuple[int, ...]  # by age
    most: int  # that any agent can count in any round

    @classmethod
    def of(cls, weights: tuple[int, ...], mixing: Mixing) -> Ages:
        """`mixing` is that of all agents."""
        return cls(weights, max(weights) * (mixing.links.most + 1))

    def weight(self, round: int, number: int) -> int:
        """Of a message of round `number` in a round of its receiver."""
        age = TENTHS * max(0, round - number) // (round + TENTHS)
        return self.weights[min(age, len(self.weights) - 1)]

    def weigh(self, mixing: Mixing, round: int, heard: Mapping[int, int]) -> tuple[list[int], Mixing]:
        """The senders whose messages an agent mixes in a round, itself included, in order, and how: [1, K].

        `mixing` is the agent's row [1, N]; `heard` has the round of each neighbour's message.
        """
        own = int(mixing.own[0])
        counts = {j: self.weight(round, number) for j, number in heard.items()}
        if LEAST * sum(counts.values()) < self.weights[0]:
            counts = {}
        columns = sorted([own, *(j for j, count in counts.items() if count)])  # [K]
        weights = [counts[j] for j in columns if j != own]
        return columns, mixing.restrict(torch.tensor(columns)).aged(weights, self.weights[0], self.most)
