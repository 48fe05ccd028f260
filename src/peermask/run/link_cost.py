"""Cost of messages where links change: each is coded against what its receiver last heard from its sender.

Receivers that heard the same messages of a sender share one history, so a fixed graph costs the same as in
wire/cost.py. A receiver remembers a bounded number of senders and forgets the one heard longest ago; of a sender that
it
does not remember it knows the opening, which every agent can compute, or nothing.

A line is a message to the receivers that share a history. On a CPU lines are counted one by one with the codec's own
histories; on a GPU many at once, each row at its own frame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from peermask.graph.links import Links
from peermask.wire import History, Schema
from peermask.wire.cost import Cost, Spread, coded_row, in_turn, measured_by_kernels, message_measures
from peermask.wire.receiver_state import (
    ReceiverRows,
    ReceiverState,
    ReceiverTensors,
    counted_by_kernels,
    empty_receiver_state,
    first_message,
    restore_receiver_state,
    where_counted,
)
from peermask.wire.schema import MessageRow, Payload, row_of

# Shapes: A agents here, E links of a round, B lines of a round, H histories, M remembered links

REMEMBERED = 32  # senders of which a receiver keeps a history
LINKS = ".links"  # of a checkpoint: [M, 3] receiver, sender, place of the history
AT_ONCE = 2**28  # weights of lines that a GPU counts at once; they take a few bytes each
MOST_LINES = 2**15  # at once: a launch is at most 65,535 wide


class RemoteHistory:
    """Placeholder for the history of a sender in another process: receivers remember it, too."""


SavedHistory: TypeAlias = History | ReceiverTensors | RemoteHistory
Counted: TypeAlias = tuple[
    Tensor, Tensor, Sequence[SavedHistory]
]  # [B] bytes, [B] whether deltas, histories after them


class LinkHistories:
    """Histories that receivers have of the senders they remember. Messages of the agents here are counted; these are
    numbered from `first`, and `opening` is theirs [A, ...]."""

    def __init__(self, opening: Payload | None = None, remembered: int = REMEMBERED, first: int = 0) -> None:
        self.opening, self.remembered, self.first = opening, remembered, first
        # receiver -> sender -> history; the sender heard last is last
        self.by_receiver: defaultdict[int, dict[int, SavedHistory]] = defaultdict(dict)

    def cost(self, payload: Payload, links: Links, sizes: tuple[int, ...], spread: Spread = in_turn) -> Cost:
        """Count a round's messages [A, ...], with the links of all agents, and update the histories.

        `coded_bytes` is the mean over the receivers of each."""
        payload = where_counted(payload)
        leaf, self.schema = next(iter(payload.values())), Schema.of_rows(payload, sizes)
        lines: dict[tuple[int, int], list[int]] = defaultdict(list)  # sender, history -> receivers
        histories: dict[tuple[int, int], SavedHistory | None] = {}
        for receiver, sender in zip(links.receivers.tolist(), links.senders.tolist(), strict=True):
            history = self.by_receiver[receiver].get(sender)
            lines[sender, id(history)].append(receiver)
            histories[sender, id(history)] = history
        local = [line for line in lines if 0 <= line[0] - self.first < len(leaf)]
        rows = [sender - self.first for sender, _ in local]
        before = [histories[line] for line in local]
        if counted_by_kernels(payload):
            bytes_each, is_delta, after = self._by_kernels(payload, rows, before, sizes)
        else:
            bytes_each, is_delta, after = self._by_rows(payload, rows, before, spread)
        newly = dict(zip(local, after, strict=True))
        for line, receivers in lines.items():
            history = newly.get(line) or RemoteHistory()
            for receiver in receivers:
                self.remember(receiver, line[0], history)
        receiver_counts = torch.tensor(
            [len(lines[line]) for line in local], dtype=torch.int64, device=bytes_each.device
        )  # [B]
        index = torch.tensor(rows, dtype=torch.int64, device=bytes_each.device)
        total, frames, deltas = torch.zeros(3, len(leaf), dtype=torch.int64, device=bytes_each.device)
        for sums, values in (
            (total, bytes_each * receiver_counts),
            (frames, receiver_counts),
            (deltas, is_delta * receiver_counts),
        ):
            sums.index_add_(0, index, values)
        kind = torch.where(frames == 0, 3, torch.where(deltas == 0, 0, torch.where(deltas == frames, 1, 2)))
        paper, ones, bitmap, entropy = message_measures(payload, sizes, spread)
        return Cost(paper, ones, bitmap, entropy, total / frames.clamp(min=1).double(), kind)

    def _by_rows(
        self, payload: Payload, rows: Sequence[int], histories: Sequence[SavedHistory | None], spread: Spread
    ) -> Counted:
        schema = self.schema
        # A copy: a history that is remembered for long must not keep the messages of all agents.
        sent = {row: {name: leaf.copy() for name, leaf in row_of(payload, row).items()} for row in set(rows)}

        def measured(row: int, history: SavedHistory | None) -> tuple[int, bool, History]:
            return self.coded(sent[row], schema, history, row)

        each = spread(measured, rows, histories)
        bytes_each, is_delta, after = zip(*each, strict=True) if each else ((), (), ())
        return torch.tensor(bytes_each, dtype=torch.int64), torch.tensor(is_delta, dtype=torch.int64), after

    def coded(
        self, message: MessageRow, schema: Schema, history: SavedHistory | None, row: int
    ) -> tuple[int, bool, History]:
        """Code an agent's message on a CPU, for receivers with this history of it, or none yet.

        Returns its bytes, whether it is a delta, and the history after it."""
        if history is None and self.opening is not None:
            history = History.begin(row_of(self.opening, row), schema)
        assert history is None or isinstance(history, History)
        return coded_row(message, schema, history, self.first + row)

    def _by_kernels(
        self, payload: Payload, rows: Sequence[int], histories: Sequence[SavedHistory | None], sizes: tuple[int, ...]
    ) -> Counted:
        """Count on the GPU, without a copy to the CPU."""
        device, schema = next(iter(payload.values())).device, self.schema
        bytes_each, is_delta = torch.zeros(2, len(rows), dtype=torch.int64, device=device)
        after: dict[int, SavedHistory] = {}
        step = max(1, min(MOST_LINES, AT_ONCE // sum(leaf.size for leaf in schema.leaves)))
        new = [place for place, history in enumerate(histories) if history is None]
        old = [place for place, history in enumerate(histories) if history is not None]
        for places in (part[at : at + step] for part in (new, old) for at in range(0, len(part), step)):
            senders, index = [rows[place] for place in places], torch.tensor(places, device=device)
            stack = [history for place in places if isinstance(history := histories[place], ReceiverTensors)]
            before: ReceiverState | None = ReceiverTensors.stacked(stack) if stack else None
            if not stack and self.opening is not None:
                before = first_message({name: leaf[senders].to(device) for name, leaf in self.opening.items()}, schema)
            assert not isinstance(before, ReceiverRows)
            sent = {name: leaf[senders] for name, leaf in payload.items()}
            (_, _, bytes_each[index], is_delta[index]), then = measured_by_kernels(sent, before, sizes)
            after.update(zip(places, then.apart(), strict=True))
        return bytes_each, is_delta, [after[place] for place in range(len(rows))]

    def remember(self, receiver: int, sender: int, history: SavedHistory) -> None:
        senders = self.by_receiver[receiver]
        senders.pop(sender, None)
        senders[sender] = history
        if len(senders) > self.remembered:
            del senders[next(iter(senders))]

    def tensors(self) -> Payload:
        """State for a checkpoint: which receivers remember which senders, and the histories of the senders here, in
        their order."""
        if not self.by_receiver:
            return {}
        links_and_histories = [
            (to, sender, history)
            for to, senders in sorted(self.by_receiver.items())
            for sender, history in senders.items()
        ]
        by_id = {id(history): (sender, history) for _, sender, history in links_and_histories}
        ordered = sorted(by_id.values(), key=lambda each: each[0])
        places = {id(history): place for place, (_, history) in enumerate(ordered)}
        links = torch.tensor([(to, sender, places[id(history)]) for to, sender, history in links_and_histories])
        rows = ReceiverRows(tuple(history for _, history in ordered if isinstance(history, History)))
        stacks = [history for _, history in ordered if isinstance(history, ReceiverTensors)]
        saved = ReceiverTensors.stacked(stacks).tensors() if stacks else rows.tensors() if rows.histories else {}
        return {**(saved or empty_receiver_state(self.schema)), LINKS: links}

    def restore(self, saved: Mapping[str, Tensor], payload: Payload, sizes: tuple[int, ...]) -> None:
        """Restore the result of `tensors`; `payload` is any message of the agents here, for its leaves."""
        leaf, self.schema = next(iter(payload.values())), Schema.of_rows(payload, sizes)
        links = saved[LINKS]
        histories: list[SavedHistory] = [RemoteHistory() for _ in range(int(links[:, 2].max()) + 1)]
        (shard,) = shards_of(links, [slice(self.first, self.first + len(leaf))])
        for row, place in enumerate(range(shard.start, shard.stop)):
            one = {name: rows[row : row + 1] for name, rows in saved.items() if name != LINKS}
            state = restore_receiver_state(one, self.schema, leaf.device)
            histories[place] = state.histories[0] if isinstance(state, ReceiverRows) else state
        for receiver, sender, place in links.tolist():
            self.by_receiver[receiver][sender] = histories[place]


def shards_of(links: Tensor, agents: Sequence[slice]) -> list[slice]:
    """Find the histories of a checkpoint whose senders are in each shard."""
    senders = torch.zeros(int(links[:, 2].max()) + 1, dtype=torch.int64)
    senders[links[:, 2]] = links[:, 1]  # in ascending order
    bounds = torch.tensor([(shard.start, shard.stop) for shard in agents])
    return [slice(first, end) for first, end in torch.searchsorted(senders, bounds).tolist()]
