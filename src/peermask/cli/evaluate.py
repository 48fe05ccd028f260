"""`peermask evaluate`: how often a ticket is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    ticket: Annotated[Path, typer.Argument(help="A .ticket file.")],
    dataset: Annotated[str, typer.Option(help="A dataset, as a config names it; see `peermask list datasets`.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the dataset, e.g. path=x.npz.")
    ] = None,
) -> None:
    """Print the accuracy of a ticket on a dataset's test samples.

    Once on the labels its agent learned, and once on all.
    """
    from peermask.data import datasets
    from peermask.experiment.choice import choose
    from peermask.experiment.config import split_override
    from peermask.exports.measure import evaluate

    chosen = choose(datasets, "dataset", {"name": dataset, **dict(map(split_override, set_ or ()))})
    found = evaluate(ticket, datasets[chosen.name].make(**dict(chosen.options)))
    if found.own_samples:
        print(f"its own labels: {_share(found.own_right, found.own_samples)}")
    print(f"all labels: {_share(found.right, found.samples)}")
    print(f"answers were chosen among {'its own' if found.readout == 'own' else 'all'} labels")


def _share(right: int, samples: int) -> str:
    return f"{100 * right / samples:.2f} % ({right} of {samples})"
