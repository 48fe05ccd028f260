"""`peermask evaluate`: how often a ticket is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peermask.cli.imports import Import, bring


def evaluate(
    ticket: Annotated[Path, typer.Argument(help="A .ticket file.")],
    dataset: Annotated[str, typer.Option(help="A dataset, as a config names it; see `peermask list datasets`.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the dataset, e.g. path=x.npz.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The weights it is a mask over, if those were given.")] = None,
    confusion: Annotated[
        bool, typer.Option("--confusion", help="Print how often labels were taken for others.")
    ] = False,
    import_: Import = None,
) -> None:
    """Print what a ticket reaches on a dataset's test samples.

    Its accuracy, once on the labels its agent learned and once on all, and other figures of its task.
    """
    from peermask.data import datasets
    from peermask.experiment.choice import choose
    from peermask.experiment.config import split_override
    from peermask.experiment.shown import name_of, shown
    from peermask.exports.measure import evaluate

    bring(import_)
    chosen = choose(datasets, "dataset", {"name": dataset, **dict(map(split_override, set_ or ()))})
    found = evaluate(ticket, datasets[chosen.name].make(**dict(chosen.options)), weights=weights)
    if found.task != "classification":
        for name, value in found.figures.items():
            print(f"{name_of(name)}: {shown(name, value)} ({found.samples} samples)")
        return
    if found.own_samples:
        print(f"its own labels: {_share(found.own_right, found.own_samples)}")
    print(f"all labels: {_share(found.right, found.samples)}")
    print(f"macro F1: {shown('macro_f1', found.figures['macro_f1'])}")
    print(f"answers were chosen among {'its own' if found.readout == 'own' else 'all'} labels")

    if confusion and found.confusion is not None:
        print("label by answer:")
        for row in found.confusion.tolist():
            print(" ".join(f"{count:5d}" for count in row))


def _share(right: int, samples: int) -> str:
    return f"{100 * right / samples:.2f} % ({right} of {samples})"
