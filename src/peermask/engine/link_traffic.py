"""What messages cost where links change: each is coded against what that very receiver heard last from that sender.

Receivers that heard the same messages of a sender share one history, so a graph that stays costs what it does in
traffic.py. A receiver remembers a bounded number of senders and forgets who was heard longest ago; of whom it does not
remember it knows the opening, which everybody can work out, or nothing.

Histories are the codec's own, on the CPU wherever agents are computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from peermask.algorithms.contract import Payload
from peermask.engine.known import KnownRows, restored, row_of
from peermask.engine.round import Spread, in_turn
from peermask.engine.traffic import Cost, coded_row, message_measures, schema_of
from peermask.graph.links import Links
from peermask.wire import History

# Shapes: N agents, E links of a round, H histories, M remembered links

REMEMBERED = 32  # senders of which a receiver keeps a history
LINKS = ".links"  # of a checkpoint: [M, 3] receiver, sender, place of the history


class LinkHistories:
    """What every receiver knows of the senders it remembers."""

    def __init__(self, opening: Payload | None = None, remembered: int = REMEMBERED) -> None:
        self.opening, self.remembered = opening, remembered
        # receiver -> sender -> history; who was heard last is last
        self.held: defaultdict[int, dict[int, History]] = defaultdict(dict)

    def cost(self, payload: Payload, links: Links, sizes: tuple[int, ...], spread: Spread = in_turn) -> Cost:
        """Of a round's messages [N, ...] on the CPU; `coded_bytes` is the mean over the receivers of each. They know
        more then."""
        schema = schema_of(payload, sizes)
        lines: dict[tuple[int, int], list[int]] = defaultdict(list)  # sender, history -> receivers
        known: dict[tuple[int, int], History | None] = {}
        for receiver, sender in zip(links.receivers.tolist(), links.senders.tolist(), strict=True):
            history = self.held[receiver].get(sender)
            lines[sender, id(history)].append(receiver)
            known[sender, id(history)] = history

        def measured(line: tuple[int, int]) -> tuple[int, bool, History]:
            sender, history = line[0], known[line]
            if history is None and self.opening is not None:
                history = History.begin(row_of(self.opening, sender), schema)
            # A copy: a history that is remembered for long must not keep the messages of all agents.
            row = {name: values.copy() for name, values in row_of(payload, sender).items()}
            return coded_row(row, schema, history, sender)

        total, frames, deltas = torch.zeros(3, links.messages, dtype=torch.int64)
        for (sender, _), receivers, (size, is_delta, after) in zip(
            lines, lines.values(), spread(measured, lines), strict=True
        ):
            total[sender] += size * len(receivers)
            frames[sender] += len(receivers)
            deltas[sender] += is_delta * len(receivers)
            for receiver in receivers:
                self._remember(receiver, sender, after)
        kind = torch.where(frames == 0, 3, torch.where(deltas == 0, 0, torch.where(deltas == frames, 1, 2)))
        paper, ones, bitmap, entropy = message_measures(payload, sizes, spread)
        return Cost(paper, ones, bitmap, entropy, total / frames.clamp(min=1).double(), kind)

    def _remember(self, receiver: int, sender: int, history: History) -> None:
        senders = self.held[receiver]
        senders.pop(sender, None)
        senders[sender] = history
        if len(senders) > self.remembered:
            del senders[next(iter(senders))]

    def tensors(self) -> Payload:
        """For a checkpoint."""
        places: dict[int, int] = {}
        histories: list[History] = []
        links: list[tuple[int, int, int]] = []
        for receiver, senders in sorted(self.held.items()):
            for sender, history in senders.items():
                if id(history) not in places:
                    places[id(history)] = len(histories)
                    histories.append(history)
                links.append((receiver, sender, places[id(history)]))
        return {**KnownRows(tuple(histories)).tensors(), LINKS: torch.tensor(links)} if links else {}

    def restore(self, saved: Mapping[str, Tensor], payload: Payload, sizes: tuple[int, ...]) -> None:
        """From what `tensors` gave; `payload` is any message, for its leaves."""
        known = restored(saved, schema_of(payload, sizes), torch.device("cpu"))
        assert isinstance(known, KnownRows)
        for receiver, sender, place in saved[LINKS].tolist():
            self.held[receiver][sender] = known.histories[place]
