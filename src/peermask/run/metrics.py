"""The tables of a run: evaluations per agent, and traffic per agent and round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from torch import Tensor

from peermask.data.dataset import Task
from peermask.data.measures import FIGURES
from peermask.errors import RunError
from peermask.files import write_atomically
from peermask.run.assemble import openings
from peermask.run.build import Experiment
from peermask.run.evaluate import Score
from peermask.run.link_cost import LinkHistories
from peermask.store.folder import RunFolder
from peermask.store.table import append_rows, forget_after, read_table
from peermask.wire import Schema
from peermask.wire.cost import COST_COLUMNS, KINDS, Cost, Spread, in_turn, message_cost
from peermask.wire.receiver_state import ReceiverState, first_message, restore_receiver_state
from peermask.wire.schema import Payload


def figures_of(task: Task, further: Sequence[str] = ()) -> tuple[str, ...]:
    """What is measured of every agent, the figure that counts first."""
    return tuple(dict.fromkeys((*FIGURES[task], *further)))


def metric_columns(figures: Sequence[str]) -> tuple[str, ...]:
    """List the columns of metrics.csv."""
    main, *others = figures
    return (
        "round",
        "agent",
        "train_loss",
        f"validation_{main}",
        "validation_loss",
        f"test_{main}",
        "test_loss",
        "density",
        "sent_bytes",
        "seconds",
        f"unmixed_{main}",
        *(f"test_{name}" for name in others),
        *(f"validation_{name}" for name in others),
    )


METRICS = metric_columns(figures_of("classification"))
CONFUSION = ("round", "agent", "label", "answer", "samples")
TRAFFIC = ("round", "agent", "links", *COST_COLUMNS)


@dataclass(frozen=True)
class Evaluation:
    """What all N agents reached after a round."""

    round: int
    train_loss: Tensor  # [N] mean since the evaluation before
    validation: Score
    test: Score
    density: Tensor  # [N]
    sent_bytes: Tensor  # [N] so far, over all of an agent's links
    seconds: float = nan  # since the start, over all resumptions
    unmixed_accuracy: Tensor | None = None  # [N] of the models as they were sent, where that was asked for

    @property
    def plateau_signal(self) -> float:
        """Mean of the figure that counts on held-out samples, or minus the training loss where nothing is held out."""
        main = self.validation.main
        known = main[~main.isnan()]
        return float(known.mean()) if len(known) else -float(self.train_loss.mean())


def write_evaluation(folder: RunFolder, evaluation: Evaluation, ids: Sequence[int]) -> None:
    """One row per agent, with its number."""
    test, validation, unmixed = evaluation.test, evaluation.validation, evaluation.unmixed_accuracy
    _, *others = test.figures
    columns = (
        evaluation.train_loss,
        validation.main,
        validation.loss,
        test.main,
        test.loss,
        evaluation.density,
        evaluation.sent_bytes,
        torch.full_like(evaluation.sent_bytes, evaluation.seconds),
        torch.full_like(evaluation.sent_bytes, nan) if unmixed is None else unmixed,
        *(test.figures[name] for name in others),
        *(validation.figures[name] for name in others),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    shown = ([evaluation.round, agent, *map(_number, row)] for agent, row in zip(ids, rows, strict=True))
    append_rows(folder.metrics, metric_columns(tuple(test.figures)), shown)


def write_confusion(folder: RunFolder, evaluation: Evaluation, ids: Sequence[int]) -> None:
    """Which labels were taken for which, one row for each pair that occurs; in place of an earlier table."""
    counts = evaluation.test.confusion
    if counts is None:
        return
    found = counts.nonzero().tolist()  # [pairs, 3]
    rows = [[evaluation.round, ids[i], label, answer, int(counts[i, label, answer])] for i, label, answer in found]
    lines = [CONFUSION, *rows]
    write_atomically(folder.confusion, "".join(",".join(map(str, line)) + "\n" for line in lines).encode())


def forget_rounds_after(folder: RunFolder, round: int) -> None:
    for path in (folder.metrics, folder.traffic):
        forget_after(path, round)


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
        self._known: ReceiverState | None = None
        self._of_links: LinkHistories | None = None  # where links change
        self.links = torch.tensor(experiment.messages_sent, dtype=torch.float64)  # [N] in the first round
        self.sent = torch.zeros(len(self.links), dtype=torch.float64)  # [N] bytes over all links, as written so far
        self._pending: list[tuple[int, Cost, Tensor]] = []  # round, cost, links [N]
        if folder is not None:
            traffic = read_table(folder.traffic, agents=len(self.links))
            sent = np.rint(traffic["links"] * traffic["coded_bytes"])  # [R, N]
            self.sent += torch.from_numpy(np.nansum(sent, 0))

    @property
    def before(self) -> Payload | None:
        """What receivers know of every agent, for a checkpoint."""
        known = self._of_links or self._known
        return self._saved if known is None else known.tensors()

    def record(self, number: int, shared: Payload, spread: Spread = in_turn) -> None:
        if shared and self.experiment.schedule.changes:
            self._pending.append(self._by_link(number, shared, spread))
        elif shared:
            known = self._known or self._at_first(shared)
            cost, self._known = message_cost(shared, known, self.sizes, spread, self.agents.ids[0])
            self._pending.append((number, cost, self.links))

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
        return number, cost, torch.from_numpy(links.sent).double()

    def record_taken(self, number: int, cost: Cost, taken: Tensor) -> None:
        """Messages with their number of receivers [N], and what they cost for each receiver."""
        self._pending.append((number, cost, taken))

    def _at_first(self, shared: Payload) -> ReceiverState | None:
        """What receivers knew before this message: what a checkpoint holds, or the agents' openings."""
        device, schema = next(iter(shared.values())).device, Schema.of_rows(shared, self.sizes)
        if self._saved is not None:
            try:
                return restore_receiver_state(self._saved, schema, device)
            except KeyError as error:
                raise RunError(f"the checkpoint lacks {error} of the messages sent; start a new run") from None
        opening = openings(self.experiment, self.agents)
        return first_message({name: leaf.to(device) for name, leaf in opening.items()}, schema) if opening else None

    def flush(self) -> None:
        if not self._pending:
            return
        # One copy of all, since every one waits for the device; whole numbers stay exact.
        costs = [
            torch.stack([getattr(cost, name).double() for name in COST_COLUMNS], 1) for _, cost, _ in self._pending
        ]
        told = self.all_gather(torch.stack(costs, 1).cpu())  # [N, rounds, columns]
        links = torch.stack([counts for _, _, counts in self._pending], 1)  # [N, rounds]
        self.sent += (links * told[:, :, COST_COLUMNS.index("coded_bytes")]).round().sum(1)
        # Twelve digits of mean bytes: times the number of receivers, rounded, they are the whole number sent.
        rows = [
            [number, agent, int(count), *map(_number, values), f"{coded:.12g}", KINDS[int(kind)]]
            for place, (number, _, counts) in enumerate(self._pending)
            for agent, (count, (*values, coded, kind)) in enumerate(
                zip(counts.tolist(), told[:, place].tolist(), strict=True)
            )
        ]
        if self.folder is not None:
            append_rows(self.folder.traffic, TRAFFIC, rows)
        self._pending.clear()


def _number(value: float) -> int | str:
    """Integers unchanged, other numbers with the digits of a float32."""
    return int(value) if float(value).is_integer() else f"{value:.7g}"
