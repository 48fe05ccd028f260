"""Ledger of what messages cost. Where links change, each is coded against what its receiver last heard from its sender.

Receivers that heard the same messages of a sender share one history, so a fixed graph costs the same as in
wire/cost.py. A receiver remembers a bounded number of senders and forgets the one heard longest ago; of a sender that
it does not remember it knows the opening, which every agent can compute, or nothing.

A line is a message to the receivers that share a history. On a CPU lines are counted one by one with the codec's own
histories; on a GPU many at once, each row at its own frame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from peermask.errors import RunError
from peermask.graph.links import Links
from peermask.run.assemble import openings
from peermask.run.build import Experiment
from peermask.run.metrics import number_text
from peermask.store.folder import RunFolder
from peermask.store.table import append_rows, read_table
from peermask.wire import History, Schema
from peermask.wire.cost import (
    COST_COLUMNS,
    KINDS,
    Cost,
    Spread,
    code_row,
    in_turn,
    kinds,
    measure_by_kernels,
    message_cost,
    message_measures,
)
from peermask.wire.receiver_state import (
    ReceiverRows,
    ReceiverState,
    ReceiverTensors,
    empty_receiver_state,
    first_message,
    is_counted_by_kernels,
    restore_receiver_state,
    to_counting_device,
)
from peermask.wire.schema import MessageRow, Payload, row_of

# Shapes: A agents here, E links of a round, B lines of a round, H histories, M remembered links

SENDERS_REMEMBERED = 32  # senders of which a receiver keeps a history
LINKS = ".links"  # of a checkpoint: [M, 3] receiver, sender, place of the history
WEIGHTS_AT_ONCE = 2**28  # weights of lines that a GPU counts at once; they take a few bytes each
LINES_AT_ONCE = 2**15  # at once: a launch is at most 65,535 wide


class RemoteHistory:
    """Placeholder for the history of a sender in another process: receivers remember it, too."""


SavedHistory: TypeAlias = History | ReceiverTensors | RemoteHistory
# [B] bytes, [B] whether deltas, histories after them
Counted: TypeAlias = tuple[Tensor, Tensor, Sequence[SavedHistory]]


class LinkHistories:
    """Histories that receivers have of the senders they remember. Messages of the agents here are counted; these are
    numbered from `first`, and `opening` is theirs [A, ...]."""

    def __init__(self, opening: Payload | None = None, remembered: int = SENDERS_REMEMBERED, first: int = 0) -> None:
        self.opening, self.remembered, self.first = opening, remembered, first
        # receiver -> sender -> history; the sender heard last is last
        self.by_receiver: defaultdict[int, dict[int, SavedHistory]] = defaultdict(dict)

    def cost(self, payload: Payload, links: Links, sizes: tuple[int, ...], spread: Spread = in_turn) -> Cost:
        """Count a round's messages [A, ...], with the links of all agents, and update the histories.

        `coded_bytes` is the mean over the receivers of each."""
        payload = to_counting_device(payload)
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
        if is_counted_by_kernels(payload):
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
        paper, ones, bitmap, entropy = message_measures(payload, sizes, spread)
        return Cost(paper, ones, bitmap, entropy, total / frames.clamp(min=1).double(), kinds(frames, deltas))

    def _by_rows(
        self, payload: Payload, rows: Sequence[int], histories: Sequence[SavedHistory | None], spread: Spread
    ) -> Counted:
        schema = self.schema
        # A copy: a history that is remembered for long must not keep the messages of all agents.
        sent = {row: {name: leaf.copy() for name, leaf in row_of(payload, row).items()} for row in set(rows)}

        def measured(row: int, history: SavedHistory | None) -> tuple[int, bool, History]:
            return self.code(sent[row], schema, history, row)

        each = spread(measured, rows, histories)
        bytes_each, is_delta, after = zip(*each, strict=True) if each else ((), (), ())
        return torch.tensor(bytes_each, dtype=torch.int64), torch.tensor(is_delta, dtype=torch.int64), after

    def code(
        self, message: MessageRow, schema: Schema, history: SavedHistory | None, row: int
    ) -> tuple[int, bool, History]:
        """Code an agent's message on a CPU, for receivers with this history of it, or none yet.

        Returns its bytes, whether it is a delta, and the history after it."""
        if history is None and self.opening is not None:
            history = History.begin(row_of(self.opening, row), schema)
        assert history is None or isinstance(history, History)
        return code_row(message, schema, history, self.first + row)

    def _by_kernels(
        self, payload: Payload, rows: Sequence[int], histories: Sequence[SavedHistory | None], sizes: tuple[int, ...]
    ) -> Counted:
        """Count on the GPU, without a copy to the CPU."""
        device, schema = next(iter(payload.values())).device, self.schema
        bytes_each, is_delta = torch.zeros(2, len(rows), dtype=torch.int64, device=device)
        after: dict[int, SavedHistory] = {}
        step = max(1, min(LINES_AT_ONCE, WEIGHTS_AT_ONCE // sum(leaf.size for leaf in schema.leaves)))
        new = [place for place, history in enumerate(histories) if history is None]
        old = [place for place, history in enumerate(histories) if history is not None]
        for places in (part[at : at + step] for part in (new, old) for at in range(0, len(part), step)):
            senders, index = [rows[place] for place in places], torch.tensor(places, device=device)
            stack = [history for place in places if isinstance(history := histories[place], ReceiverTensors)]
            before: ReceiverState | None = ReceiverTensors.join(stack) if stack else None
            if not stack and self.opening is not None:
                before = first_message({name: leaf[senders].to(device) for name, leaf in self.opening.items()}, schema)
            assert not isinstance(before, ReceiverRows)
            sent = {name: leaf[senders] for name, leaf in payload.items()}
            (_, _, bytes_each[index], is_delta[index]), then = measure_by_kernels(sent, before, sizes)
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
        saved = ReceiverTensors.join(stacks).tensors() if stacks else rows.tensors() if rows.histories else {}
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


TRAFFIC = ("round", "agent", "links", *COST_COLUMNS)


class Ledger:
    """Counts what is sent. Costs stay on the device until the table is written, so no round waits for one.

    Where agents are divided between processes, each counts for its own A; `all_gather` brings their figures together,
    and one of them has the folder.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder | None,
        before: Payload | None = None,
        rows: slice = slice(None),
        all_gather: Callable[[Tensor], Tensor] = lambda rows: rows,
    ) -> None:
        self.experiment, self.folder = experiment, folder
        self.agents, self.all_gather = experiment.agents.rows(rows), all_gather
        self.sizes = experiment.network.layout.sizes
        self._saved = before  # of a checkpoint, until the next message says where to
        self._state: ReceiverState | None = None
        self._of_links: LinkHistories | None = None  # where links change
        self.links = torch.tensor(experiment.messages_sent, dtype=torch.float64)  # [N] in the first round
        self.sent = torch.zeros(len(self.links), dtype=torch.float64)  # [N] bytes over all links, as written so far
        self.pending: list[tuple[int, Cost, Tensor]] = []  # round, cost for each receiver, number of receivers [N]
        if folder is not None:
            traffic = read_table(folder.traffic, agents=len(self.links))
            sent = np.rint(traffic["links"] * traffic["coded_bytes"])  # [R, N]
            self.sent += torch.from_numpy(np.nansum(sent, 0))

    @property
    def before(self) -> Payload | None:
        """State of the receivers, for a checkpoint."""
        state = self._of_links or self._state
        return self._saved if state is None else state.tensors()

    def record(self, number: int, shared: Payload, spread: Spread = in_turn) -> None:
        if shared and self.experiment.schedule.changes:
            self.pending.append(self._by_link(number, shared, spread))
        elif shared:
            state = self._state or self._at_first(shared)
            cost, self._state = message_cost(shared, state, self.sizes, spread, self.agents.ids[0])
            self.pending.append((number, cost, self.links))

    def _by_link(self, number: int, shared: Payload, spread: Spread) -> tuple[int, Cost, Tensor]:
        if self._of_links is None:
            opening = openings(self.experiment, self.agents) or None
            self._of_links = LinkHistories(opening, first=self.agents.ids[0])
            if self._saved:
                self._of_links.restore(self._saved, shared, self.sizes)
        links = self.experiment.schedule.links(number)
        with ThreadPoolExecutor() as pool:  # a simulator on a GPU has none, and may count on the CPU
            if next(iter(shared.values())).device.type != "cpu":
                spread = lambda function, /, *columns: list(pool.map(function, *columns))  # noqa: E731
            cost = self._of_links.cost(shared, links, self.sizes, spread)
        return number, cost, torch.from_numpy(links.out_degree).double()

    def _at_first(self, shared: Payload) -> ReceiverState | None:
        """State of the receivers before the first message: a checkpoint's, or that after the agents' openings."""
        device, schema = next(iter(shared.values())).device, Schema.of_rows(shared, self.sizes)
        if self._saved is not None:
            try:
                return restore_receiver_state(self._saved, schema, device)
            except KeyError as error:
                raise RunError(f"the checkpoint lacks {error} of the messages sent; start a new run") from None
        opening = openings(self.experiment, self.agents)
        return first_message({name: leaf.to(device) for name, leaf in opening.items()}, schema) if opening else None

    def flush(self) -> None:
        if not self.pending:
            return
        # One copy of all, since every one waits for the device; whole numbers stay exact.
        columns = [[getattr(cost, name).double() for name in COST_COLUMNS] for _, cost, _ in self.pending]
        costs = torch.stack([torch.stack(each, 1) for each in columns], 1)
        told = self.all_gather(costs.cpu())  # [N, rounds, columns]
        links = torch.stack([counts for _, _, counts in self.pending], 1)  # [N, rounds]
        self.sent += (links * told[:, :, COST_COLUMNS.index("coded_bytes")]).round().sum(1)
        # Twelve digits of mean bytes: times the number of receivers, rounded, they are the whole number sent.
        rows = [
            [number, agent, int(count), *map(number_text, values), f"{coded:.12g}", KINDS[int(kind)]]
            for place, (number, _, counts) in enumerate(self.pending)
            for agent, (count, (*values, coded, kind)) in enumerate(
                zip(counts.tolist(), told[:, place].tolist(), strict=True)
            )
        ]
        if self.folder is not None:
            append_rows(self.folder.traffic, TRAFFIC, rows)
        self.pending.clear()
