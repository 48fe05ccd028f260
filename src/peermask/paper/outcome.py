"""Outcome of a run: the figures that all tables and pictures need, so that the run itself can be deleted."""

from __future__ import annotations

from math import isnan, prod
from statistics import fmean, stdev
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from peermask.config.file import read_config
from peermask.errors import RunError
from peermask.files import read_json
from peermask.reports.mask_pictures import layers_of, live_filters
from peermask.store.checkpoint import Masks, list_masks, load_masks
from peermask.store.folder import RunFolder, read_result
from peermask.store.table import Floats, Table, nanmean, read_table, reported_mean
from peermask.wire.frame import VERSION

MIDDLE = 20  # filters of the first layer that the paper's figures show
ROUNDING = 5e-5  # of accuracies in a curve, which have four digits


class FirstLayer(BaseModel):
    """Every agent's mask of the first layer."""

    model_config = ConfigDict(frozen=True)

    shape: list[int]  # O, I, height, width
    agents: list[str]  # bits in hex, eight to a byte

    def mask(self, agent: int) -> Masks:
        """[O, I, height, width]"""
        packed = np.frombuffer(bytes.fromhex(self.agents[agent]), np.uint8)
        return np.unpackbits(packed, count=prod(self.shape)).astype(np.bool_).reshape(self.shape)

    def middle(self, agent: int) -> Masks:
        """The filters in the middle, as the paper shows them; all where there are no more."""
        mask = self.mask(agent)
        first = max(0, (len(mask) - MIDDLE) // 2)
        return mask[first : first + MIDDLE]


def read_masks(folder: RunFolder) -> tuple[dict[str, list[int]] | None, FirstLayer | None]:
    """Live filters by layer and agent, and masks of the first layer if it is a convolution, where masks were saved."""
    saved, manifest = list_masks(folder.masks), read_json(folder.manifest)
    if not saved:
        return None, None
    masks = load_masks(saved[max(saved)], manifest["weights"])  # [N, P_w]
    layers = layers_of(manifest)
    filters = {layer.name: live_filters(masks[:, layer.span], layer).tolist() for layer in layers}
    if len(layers[0].shape) != 4:
        return filters, None
    bits = [np.packbits(mask).tobytes().hex() for mask in masks[:, layers[0].span]]
    return filters, FirstLayer(shape=list(layers[0].shape), agents=bits)


class Curve(BaseModel):
    """Figures after each evaluation."""

    model_config = ConfigDict(frozen=True)

    rounds: list[int]
    agents: list[list[float]]  # accuracy of each agent, evaluation by evaluation
    megabytes: list[float]  # sent so far by all agents over all their links, as the codec sends it
    paper_megabytes: list[float]  # the same at 1 bit per mask entry and 32 per real value

    @property
    def mean(self) -> list[float]:
        """Mean over agents."""
        return [fmean(values) for values in zip(*self.agents, strict=True)]


class Outcome(BaseModel):
    model_config = ConfigDict(frozen=True)

    config: dict[str, Any]
    diverged: str | None = None  # why, where a loss became NaN or infinite; nothing below is known then
    hash: str | None = None
    seconds: float | None = None
    device: str | None = None
    accuracy: float | None = None  # on test data, mean over agents of what is reported of each: see store/table.py
    all_labels: float | None = None  # likewise, with answers among all labels
    own_labels: float | None = None  # likewise, among an agent's own; earlier versions did not measure it
    weighted: float | None = None  # as `accuracy`, labels weighted as in an agent's training data
    validation: float | None = None  # on held-out training data, likewise
    worst: float | None = None  # of the worst agent
    unmixed: float | None = None  # of the models before mixing, where that was tested
    density: float | None = None
    messages: int | None = None  # of all agents in all rounds
    codec: int | None = None  # version of the frames that `megabytes` counts; None where nothing is sent
    megabytes: float = 0.0
    paper_megabytes: float = 0.0
    ones_megabytes: float = 0.0  # as the authors' code counts: only mask ones and non-zero values
    curve: Curve | None = None
    filters: dict[str, list[int]] | None = None  # layer -> live filters of each agent, where masks were kept
    first_layer: FirstLayer | None = None

    @property
    def among_all(self) -> float | None:
        """Accuracy with answers among all labels, as the paper's; earlier versions knew no other."""
        return self.accuracy if self.own_labels is None else self.all_labels

    @property
    def last(self) -> float | None:
        """Accuracy after the last round."""
        return None if self.curve is None else self.curve.mean[-1]

    @property
    def kilobytes_a_message(self) -> float | None:
        return 1e3 * self.megabytes / self.messages if self.messages else None

    @property
    def messages_a_round(self) -> float | None:
        """Directed links, or messages to a server and back."""
        return self.messages / self.curve.rounds[-1] if self.messages and self.curve else None

    @property
    def megabytes_a_link(self) -> float | None:
        return self.megabytes / self.messages_a_round if self.messages_a_round else None

    @property
    def half_way(self) -> float | None:
        """Accuracy after half of the rounds: how far the run still had to go."""
        if self.curve is None:
            return None
        half = self.curve.rounds[-1] / 2
        return min(zip(self.curve.rounds, self.curve.mean, strict=True), key=lambda point: abs(point[0] - half))[1]

    @property
    def swing(self) -> float | None:
        """Mean absolute change of an agent's accuracy from one evaluation to the next, in the second half."""
        if self.curve is None or len(self.curve.rounds) < 4:
            return None
        late = np.array(self.curve.agents)[:, len(self.curve.rounds) // 2 :]  # [N, E]
        return float(np.nanmean(np.abs(np.diff(late))))

    @property
    def stuck(self) -> int | None:
        """Agents that are no better than a constant answer: the share of one of their c labels."""
        labels = self.config.get("partition", {}).get("labels_per_agent")
        reached = self.by_agent
        if reached is None or not isinstance(labels, int):
            return None
        return int((reached <= 1 / labels + ROUNDING).sum())

    @property
    def by_agent(self) -> Floats | None:
        """Accuracy of each agent, as reported: [N]."""
        if self.curve is None:
            return None
        values = np.array(self.curve.agents).T  # [E, N]
        return reported_mean(np.array(self.curve.rounds), values, ~np.isnan(values))


def measure(folder: RunFolder) -> Outcome:
    """Read a finished run: the results of its honest agents."""
    done, manifest = read_result(folder.result), read_json(folder.manifest)
    table, traffic = read_table(folder.metrics), read_table(folder.traffic)
    if not len(table.rounds):
        raise RunError(f"{folder.path} is finished but has no metrics.csv; delete it to run it again")
    liars = {known["agent"] for known in manifest["agents"] if known.get("liar")}
    honest = [agent not in liars for agent in range(table.has_row.shape[1])]

    def mean(column: str) -> float | None:
        found = nanmean(table.reported_mean(column)[honest])
        return None if isnan(found) else found

    curve, messages = _curve(table, traffic, honest), round(float(np.nansum(traffic["links"])))
    filters, first_layer = read_masks(folder)
    return Outcome(
        config=read_config(folder.config).table(),
        hash=done["hash"],
        seconds=done["seconds"],
        device=manifest["device"],
        accuracy=mean("test_accuracy"),
        all_labels=mean("test_accuracy_all"),
        own_labels=mean("test_accuracy_own"),
        weighted=mean("test_accuracy_weighted"),
        validation=mean("validation_accuracy"),
        worst=float(np.nanmin(table.reported_mean("test_accuracy")[honest])),
        unmixed=mean("unmixed_accuracy"),
        density=nanmean(table.last("density")[honest]),
        messages=messages,
        codec=VERSION if messages else None,
        megabytes=curve.megabytes[-1],
        paper_megabytes=curve.paper_megabytes[-1],
        ones_megabytes=float(_by_round(traffic, "ones_bits").sum()) / 8e6,
        curve=curve,
        filters=filters,
        first_layer=first_layer,
    )


class Summary(BaseModel):
    """A cell over its seeds."""

    seeds: int  # that finished
    diverged: int
    mean: float | None
    deviation: float | None  # None for a single seed
    half_way: float | None
    worst: float | None
    stuck: int | None  # agents of all seeds together
    unmixed: float | None
    density: float | None
    megabytes: float | None
    paper_megabytes: float | None
    ones_megabytes: float | None
    all_labels: float | None  # accuracy with answers among all labels
    own_labels: float | None  # among an agent's own
    weighted: float | None
    last: float | None  # after the last round
    codec: int | None  # where all seeds have one
    kilobytes_a_message: float | None
    megabytes_a_link: float | None


def summarise(outcomes: list[Outcome]) -> Summary:
    good = [outcome for outcome in outcomes if outcome.diverged is None]
    accuracies = [outcome.accuracy for outcome in good if outcome.accuracy is not None]

    def mean(name: str) -> float | None:
        values = [value for outcome in good if (value := getattr(outcome, name)) is not None]
        return fmean(values) if values else None

    stuck = [outcome.stuck for outcome in good if outcome.stuck is not None]
    codecs = {outcome.codec for outcome in good}
    others: dict[str, Any] = {
        "seeds": len(good),
        "diverged": len(outcomes) - len(good),
        "mean": mean("accuracy"),
        "deviation": stdev(accuracies) if len(accuracies) > 1 else None,
        "stuck": sum(stuck) if stuck else None,
        "all_labels": mean("among_all"),
        "codec": codecs.pop() if len(codecs) == 1 else None,
    }
    return Summary(**{name: mean(name) for name in Summary.model_fields if name not in others}, **others)


def _by_round(traffic: Table, column: str) -> Floats:
    """Bits or bytes over all links of all agents, by round: [R]."""
    total: Floats = np.nansum(traffic["links"] * traffic[column], axis=1)
    return total


def _curve(table: Table, traffic: Table, honest: list[bool]) -> Curve:
    def so_far(column: str, per_megabyte: float) -> list[float]:
        total = np.concatenate([[0.0], _by_round(traffic, column).cumsum()])
        upto = total[np.searchsorted(traffic.rounds, table.rounds, side="right")]
        return [round(float(each) / per_megabyte, 6) for each in upto]

    return Curve(
        rounds=table.rounds.tolist(),
        agents=[[round(value, 4) for value in agent] for agent in table["test_accuracy"].T[honest].tolist()],
        megabytes=so_far("coded_bytes", 1e6),
        paper_megabytes=so_far("paper_bits", 8e6),
    )
