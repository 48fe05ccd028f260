"""Data of the sections of a page: one run in detail (agents, graph, curves, masks, bytes, faults), and a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from peermask.reports.mask_pictures import mask_pictures
from peermask.reports.source import Curves, Source, bytes_spent, faults_of, rounded
from peermask.reports.tables import remedy
from peermask.run.result import RunResult
from peermask.store.sweeps import SweepFolder, best_rows, spread
from peermask.store.table import REPORTED

# Where the agents of a graph lie on paper.

MOST = 400  # agents; with more, all lie on a circle


def positions(agents: int, links: Iterable[Sequence[int]]) -> list[list[float]]:
    """[N][x, y] in [-1, 1]; springs between linked agents, started from a circle, so always the same picture."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(agents))
    graph.add_edges_from((one, other) for one, other in links)
    circle = nx.circular_layout(graph)
    if agents > MOST or agents < 3:
        placed = circle
    else:
        placed = nx.spring_layout(graph, pos=circle, seed=0, iterations=60, k=1.6 / agents**0.5)
    axes = [_spread([float(placed[agent][axis]) for agent in range(agents)]) for axis in (0, 1)]
    return [list(place) for place in zip(*axes, strict=True)]


def _spread(values: list[float]) -> list[float]:
    """Spread values over the whole of [-1, 1], so that no paper is wasted."""
    low, high = min(values), max(values)
    middle, reach = (low + high) / 2, (high - low) / 2 or 1.0
    return [round((value - middle) / reach, 4) for value in values]


AGENTS_SHOWN = 100  # one by one; mean and spread are always over all
ELSEWHERE = ("agents", "duplicates", "graph", "layers")  # parts of a manifest that the page shows in its own way


def run_detail(source: Source, curves: Curves, label: str, *, masks: bool = True) -> dict[str, Any]:
    result = source.result
    manifest, config = result.manifest, result.config
    shown = min(len(result.agents), AGENTS_SHOWN)
    spent = bytes_spent(source.table("traffic.csv"), manifest["weights"])
    links = manifest["graph"]["links"]
    return {
        "label": f"{label} (seed {config.seed})",
        "algorithm": config.algorithm.name,
        "dataset": manifest["dataset"]["name"],
        "classes": manifest["classes"],
        "status": result.status,
        "round": result.round,
        "rounds": config.rounds,
        "seconds": _known(float(curves.seconds[-1])) if curves.seconds.size else None,
        "weights": manifest["weights"],
        "readout": result.readout,
        "task": result.task,
        "figure": result.main_figure,
        "figures": list(result.figures),
        "confusion": _confusion(source),
        "accuracy": _known(result.mean(result.main_figure)),  # or whatever figure counts
        "reported": REPORTED,
        "remedy": remedy(result) if result.sent_bytes else None,  # where it is behind agents that send nothing
        "agents": _agents(result),
        "data": _data(manifest, shown),
        "shown": shown,
        "graph": {
            "links": links,
            "positions": positions(len(result.agents), links),
            "sent": spent.per_agent.tolist(),  # over one link
        },
        "curves": _curves(curves, shown),
        "masks": mask_pictures(source, shown) if masks else None,
        "traffic": {key: value for key, value in vars(spent).items() if key != "per_agent"},
        "faults": faults_of(source.rows("absences.csv")),
        "config": source.config,
        "manifest": {key: value for key, value in manifest.items() if key not in ELSEWHERE},
    }


def _agents(result: RunResult) -> list[dict[str, Any]]:
    return [
        {
            "agent": agent.agent,
            "labels": list(agent.labels),
            "retention": agent.retention,
            "density": _known(agent.density),
            "accuracy": _known(agent.value(result.main_figure)),
            "figures": {name: _known(agent.value(name)) for name in result.figures},
            "accuracy_all": _known(agent.test_accuracy_all),
            "accuracy_own": _known(agent.test_accuracy_own),
            "accuracy_weighted": _known(agent.test_accuracy_weighted),
            "sent": agent.sent_bytes,
            "links": agent.links,
        }
        for agent in result.agents
    ]


def _data(manifest: dict[str, Any], shown: int) -> dict[str, Any]:
    """Samples and labels of agents as the manifest has them."""
    agents = manifest["agents"]
    trained = {label for agent in agents for label in agent["labels"]}
    few, names = agents[:shown], list(enumerate(manifest["classes"])) if trained else []
    return {
        "samples": [[agent[key] for key in ("train", "validation", "test")] for agent in few],
        "counts": [dict(zip(agent["labels"], agent["counts"], strict=False)) for agent in few if trained],
        "missing": [name for label, name in names if label not in trained],
        "duplicates": manifest.get("duplicates"),
    }


def _confusion(source: Source) -> dict[int, list[list[int]]]:
    """Confusion matrices by agent: label, answer and how often, at the last round."""
    found: dict[int, list[list[int]]] = {}
    classes = len(source.result.manifest["classes"])
    for row in source.rows("confusion.csv"):
        pair = [int(row[key]) for key in ("label", "answer", "samples")]
        if int(row["round"]) == source.result.round and max(pair[:2]) < classes:
            found.setdefault(int(row["agent"]), []).append(pair)
    return found


def _curves(curves: Curves, shown: int) -> dict[str, Any]:
    return {
        "rounds": curves.rounds.tolist(),
        "bytes": rounded(np.nansum(curves.sent_bytes, axis=1), 9),
        "seconds": rounded(curves.seconds),
        "measures": {name: rounded(values[:, :shown].T) for name, values in curves.measures.items()},  # [N][E]
    }


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def sweep_data(sweep: SweepFolder, series: Sequence[Sequence[Path]]) -> dict[str, Any]:
    """The data of a page's section on the sweep; `series` are the run folders of each curve on the page."""
    rows = sweep.rows
    best = best_rows(rows)
    first = sweep.root / best[0].runs[0].path if best else None
    return {
        "keys": list(sweep.keys),
        "figure": rows[0].figure if rows else "accuracy",
        "rows": [
            {
                "values": row.values,
                "variation": row.variation,
                "algorithm": row.algorithm,
                "place": row.runs[0].place,
                "seeds": row.seeds,
                "diverged": row.diverged,
                "validation": [_known(value) for value in spread(row.validation)],
                "test": [_known(value) for value in spread(row.test)],
                "sent": None if isnan(row.sent_bytes) else row.sent_bytes,
                "best": row in best,
            }
            for row in rows
        ],
        "missing": sweep.missing,
        "top": next((place for place, paths in enumerate(series) if first in paths), 0),  # the curve of the best
    }
