"""Partitions: which training samples each agent holds.

A partition is a function `(labels [n], agents, draw, *, options) -> one sorted index array per agent`. Every agent
holds at least one sample, and but for `everything` none is held twice. `given` is handed the owners of samples in
place of their labels. What an agent makes of its samples is in local.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from peermask.errors import DataError
from peermask.registry import Registry
from peermask.streams import Stream


def apportion(total: int, weights: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers in these proportions that sum to `total`: rounded down, the rest to the largest remainders."""
    shares = np.asarray(weights, dtype=np.float64)
    exact = total * shares / shares.sum()
    whole: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - whole.sum()]] += 1
    return whole  # [len(weights)]


Indices = NDArray[np.int64]
BY_LABEL = ("labels", "counts", "dominant", "shards", "dirichlet", "meanings")  # which need one label for each sample
LARGEST = 16 * 2**20  # bytes of a file of counts
REDRAWS = 100  # of a Dirichlet partition that leaves an agent with too few samples

partitions: Registry[Callable[..., list[Indices]]] = Registry("partition")


@partitions.register("labels")
def by_labels(
    labels: Indices,
    agents: int,
    draw: Stream,
    *,
    labels_per_agent: Annotated[
        Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=1)]],
        Field(description="labels each agent holds: one number, or a list with one per agent"),
    ] = 3,
) -> list[Indices]:
    """Each agent holds a few labels; a label's samples are split evenly among its holders (the paper's)."""
    present = np.unique(labels)
    wanted = [labels_per_agent] * agents if isinstance(labels_per_agent, int) else labels_per_agent
    if len(wanted) != agents:
        raise DataError(f"partition.labels_per_agent has {len(wanted)} numbers for {agents} agents")
    if max(wanted) > len(present):
        few = f"partition.labels_per_agent is {max(wanted)}, but the data has {len(present)} labels"
        raise DataError(f"{few}; set it to at most {len(present)}, or choose another partition, such as 'iid'")
    held = deal_labels(present, wanted, draw)
    parts: list[list[Indices]] = [[] for _ in range(agents)]
    for label in present:
        holders = [i for i in range(agents) if label in held[i]]
        if holders:
            samples = shuffle(np.flatnonzero(labels == label), draw)
            for i, share in zip(holders, np.array_split(samples, len(holders)), strict=True):
                parts[i].append(share)
    return check_parts([np.concatenate(part) for part in parts], "partition.labels_per_agent", labels_per_agent)


def deal_labels(present: Indices, wanted: list[int], draw: Stream) -> list[set[int]]:
    """Every label once to a random free place, so none is left out, then the rest at random per agent."""
    places = shuffle(np.repeat(np.arange(len(wanted)), wanted), draw)  # [sum of wanted]
    held: list[set[int]] = [set() for _ in wanted]
    for i, label in zip(places, shuffle(present, draw), strict=False):
        held[i].add(int(label))
    for own, count in zip(held, wanted, strict=True):
        others = [int(label) for label in shuffle(present, draw) if label not in own]
        own.update(others[: count - len(own)])
    return held


@partitions.register("counts")
def by_counts(
    labels: Indices,
    agents: int,
    draw: Stream,  # noqa: ARG001
    *,
    path: Annotated[str, Field(min_length=1, description="text file: a line per agent, samples of each label in it")],
    labels_per_agent: Annotated[
        int | None, Field(ge=1, description="labels with samples that every line must have; by default any number")
    ] = None,
) -> list[Indices]:
    """Samples of each label as a file says, one after another; in its proportions where there are fewer."""
    counts, kinds = read_counts(Path(path), agents), int(labels.max()) + 1
    if counts.shape[1] != kinds:
        raise DataError(f"{path} has {counts.shape[1]} numbers in a line; this data has {kinds} labels")
    for agent, held in enumerate((counts > 0).sum(1)):
        if labels_per_agent is not None and held != labels_per_agent:
            raise DataError(
                f"{path}: agent {agent} has {held} labels; partition.labels_per_agent is {labels_per_agent}"
            )
    parts: list[list[Indices]] = [[] for _ in range(agents)]
    for label, wanted in enumerate(counts.T):
        samples = np.flatnonzero(labels == label)
        taken = wanted if wanted.sum() <= len(samples) else apportion(len(samples), wanted)
        for part, share in zip(parts, np.split(samples, np.cumsum(taken)), strict=False):
            part.append(share)
    return check_parts([np.concatenate(part) for part in parts], "partition.path", path)


def read_counts(path: Path, agents: int, largest: int = 10**7) -> Indices:
    """Read whole numbers [agents, labels], separated by spaces or commas."""
    try:
        with path.open(encoding="utf-8") as lines:
            text = lines.read(LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    rows = [words for line in text.splitlines() if (words := line.replace(",", " ").split())]
    if len(text) > LARGEST or len(rows) != agents:
        raise DataError(f"{path} has {len(rows)} lines of numbers; there are {agents} agents, and each needs one")
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise DataError(f"{path}: agent {number} has {len(row)} numbers, agent 0 has {len(rows[0])}; give as many")
        for word in row:
            if not (word.isascii() and word.isdigit() and len(word) < 10 and int(word) <= largest):
                raise DataError(f"{path}: agent {number} has {word[:20]!r}; give whole numbers from 0 to {largest}")
    return np.array(rows, np.int64)


@partitions.register("dominant")
def dominant(
    labels: Indices,
    agents: int,
    draw: Stream,
    *,
    samples: Annotated[int, Field(ge=1, description="samples of every agent")] = 600,
    labels_per_agent: Annotated[int, Field(ge=1, description="dominant labels of every agent")] = 3,
    uniform: Annotated[float, Field(ge=0, le=1, description="share of samples spread over all labels")] = 0.2,
) -> list[Indices]:
    """Every agent has all labels, most samples from a few of them (FedPAC's split)."""
    present = np.unique(labels)
    if labels_per_agent > len(present):
        raise DataError(f"partition.labels_per_agent is {labels_per_agent}, but the data has {len(present)} labels")
    held = deal_labels(present, [labels_per_agent] * agents, draw)
    spread = round(samples * uniform)
    pools = {int(label): shuffle(np.flatnonzero(labels == label), draw) for label in present}
    parts: list[list[Indices]] = [[] for _ in range(agents)]
    for part, own in zip(parts, held, strict=True):
        wanted = apportion(spread, np.ones(len(present)))
        wanted += apportion(samples - spread, np.isin(present, list(own)))
        for label, count in zip(present.tolist(), wanted.tolist(), strict=True):
            if count > len(pools[label]):
                raise DataError(f"partition.samples is {samples}: too many for {agents} agents, label {label} runs out")
            part.append(pools[label][:count])
            pools[label] = pools[label][count:]
    return check_parts([np.concatenate(part) for part in parts], "partition.samples", samples)


@partitions.register("iid")
def iid(labels: Indices, agents: int, draw: Stream) -> list[Indices]:
    """Samples dealt evenly at random."""
    return check_parts(np.array_split(draw.permutation(len(labels)), agents), "agents", agents)


@partitions.register("everything")
def everything(labels: Indices, agents: int, draw: Stream) -> list[Indices]:  # noqa: ARG001
    """Every agent holds every sample: for a fleet whose devices each have their own data file."""
    return [np.arange(len(labels))] * agents  # one array for all


@partitions.register("given")
def given(owners: Indices, agents: int, draw: Stream) -> list[Indices]:  # noqa: ARG001
    """Samples belong to agents as the data says: by its agent column, or a folder for each agent."""
    present = np.unique(owners)
    if not np.array_equal(present, np.arange(agents)):
        raise DataError(
            f"agents is {agents}, but the data has {len(present)} agents, {present.min()} to {present.max()}; "
            f"number them from 0 and set agents = {len(present)}"
        )
    return [np.flatnonzero(owners == agent) for agent in range(agents)]


@partitions.register("shards")
def shards(
    labels: Indices,
    agents: int,
    draw: Stream,
    *,
    shards_per_agent: Annotated[int, Field(ge=1, description="pieces of the label-sorted samples per agent")] = 2,
) -> list[Indices]:
    """Samples sorted by label and cut into equal shards, dealt at random."""
    order = draw.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], agents * shards_per_agent)
    dealt = draw.permutation(len(pieces)).reshape(agents, shards_per_agent)
    parts = [np.concatenate([pieces[k] for k in own]) for own in dealt]
    return check_parts(parts, "partition.shards_per_agent", shards_per_agent)


@partitions.register("dirichlet")
def dirichlet(
    labels: Indices,
    agents: int,
    draw: Stream,
    *,
    alpha: Annotated[float, Field(ge=1e-6, le=1e6, description="small: few labels per agent; large: even")] = 0.5,
    min_samples: Annotated[int, Field(ge=1, description="every agent holds at least this many")] = 10,
) -> list[Indices]:
    """Each label is spread over the agents in Dirichlet(alpha) proportions."""
    check_enough(len(labels), agents, min_samples)
    for _ in range(REDRAWS):
        parts: list[list[Indices]] = [[] for _ in range(agents)]
        for label in np.unique(labels):
            samples = shuffle(np.flatnonzero(labels == label), draw)
            ends = np.cumsum(apportion(len(samples), proportions(alpha, agents, draw)))
            for part, share in zip(parts, np.split(samples, ends[:-1]), strict=True):
                part.append(share)
        joined = [np.concatenate(part) for part in parts]
        if min(map(len, joined)) >= min_samples:
            break
    return check_parts(top_up(joined, min_samples), "partition.min_samples", min_samples)


@partitions.register("quantity")
def quantity(
    labels: Indices,
    agents: int,
    draw: Stream,
    *,
    alpha: Annotated[float, Field(ge=1e-6, le=1e6, description="small: very unequal sizes; large: even")] = 0.5,
    min_samples: Annotated[int, Field(ge=1, description="every agent holds at least this many")] = 10,
) -> list[Indices]:
    """The same mix of labels everywhere, in amounts skewed by Dirichlet(alpha)."""
    check_enough(len(labels), agents, min_samples)
    sizes = min_samples + apportion(len(labels) - agents * min_samples, proportions(alpha, agents, draw))
    # A sample's place among those of its label, as a fraction: in this order every stretch has the same mix.
    place = np.empty(len(labels))
    for label in np.unique(labels):
        samples = shuffle(np.flatnonzero(labels == label), draw)
        place[samples] = (np.arange(len(samples)) + draw.uniform(1)) / len(samples)
    parts = np.split(np.argsort(place, kind="stable"), np.cumsum(sizes)[:-1])
    return check_parts(parts, "partition.min_samples", min_samples)


def proportions(alpha: float, agents: int, draw: Stream) -> NDArray[np.float64]:
    """Dirichlet(alpha) weights, not yet normalised; where all underflow, one agent gets everything."""
    gammas = draw.gamma(alpha, agents)
    winner = int(draw.uniform(1)[0] * agents)
    return (np.arange(agents) == winner).astype(np.float64) if gammas.sum() < 1e-300 else gammas  # [agents]


def top_up(parts: list[Indices], min_samples: int) -> list[Indices]:
    """Move samples from the agents with most to those with fewer than `min_samples`."""
    for i in range(len(parts)):
        while len(parts[i]) < min_samples:
            largest = max(range(len(parts)), key=lambda j: len(parts[j]))
            take = min(min_samples - len(parts[i]), max(1, (len(parts[largest]) - min_samples) // 2))
            parts[i] = np.concatenate([parts[i], parts[largest][-take:]])
            parts[largest] = parts[largest][:-take]
    return parts


def shuffle(samples: Indices, draw: Stream) -> Indices:
    return samples[draw.permutation(len(samples))]


def check_enough(samples: int, agents: int, min_samples: int) -> None:
    if agents * min_samples > samples:
        raise DataError(
            f"partition.min_samples is {min_samples}, but {samples} samples give {agents} agents "
            f"at most {samples // agents} each"
        )


def check_parts(parts: list[Indices], key: str, value: object) -> list[Indices]:
    """Sort the samples of each agent; an agent without samples is an error."""
    for i, part in enumerate(parts):
        if not len(part):
            raise DataError(f"agent {i} is left without samples: {key} is {value}, too much for this data")
    return [np.sort(part) for part in parts]
