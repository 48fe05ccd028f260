"""Rehearsal of `peermask reproduce` at paper scale on a CPU, so that no GPU's time is spent on a mistake.

    python -m benchmarks.rehearsal --data-dir cifar-10-batches-bin [--fashion FOLDER] [--released FOLDER] [NAME ...]

Every cell of seed 0 is built as it would be, with its data, partition, graph, network and options. Those that differ in
more than labels, retention and what is tested also run two rounds, with batches of eight images and few test images
(not with released inputs). All settings that tuning tries are checked, too. It prints a line for what fails, and ends
with 1 then; with 2 if a name is unknown or data cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from peermask.data.cifar10 import cifar10
from peermask.data.dataset import Dataset, Split
from peermask.data.digits import digits
from peermask.data.fashion_mnist import fashion_mnist
from peermask.errors import PeermaskError
from peermask.paper.cells import Cell, Defaults, add_released, cells_of, tuning_cell
from peermask.paper.preset import ConfigPart, methods, scales, selected
from peermask.run.build import build
from peermask.run.execution import Execution
from peermask.run.runner import run_experiment

DEFAULTS = Defaults("paper", scales()["paper"])
SMALL = {"rounds": 2, "batch_size": 8}
TESTED = 50  # images


def main() -> int:
    try:
        return rehearse(_arguments())
    except PeermaskError as error:  # an unknown name, or data that cannot be read
        print(f"rehearsal: {error}", file=sys.stderr)
        return 2


def rehearse(arguments: argparse.Namespace) -> int:
    """Build all cells, play a run of each kind, and say how many failed."""
    names = selected(tuple(arguments.names))
    if arguments.released is not None:
        add_released([name for name in names if name.startswith("table")], arguments.released)
    readers: dict[str, Callable[[], Dataset]] = {
        "cifar10": lambda: cifar10(folder=str(arguments.data_dir)),
        "fashion-mnist": lambda: fashion_mnist(folder=arguments.fashion),
        "digits": digits,
    }
    data: dict[str, Dataset] = {}
    failed, played = 0, set()
    cells = [cell for name in names for cell in cells_of(name, (0,))]
    for cell in cells:
        table = DEFAULTS.table(cell, {})
        used = table["dataset"]["name"]
        if used not in data:
            data[used] = _few_tested(readers[used]())
        kind = _kind(table)
        try:
            play = kind not in played and not cell.of_column.files
            _try(cell, data[used], play=play)
        except PeermaskError as error:
            failed += 1
            print(f"FAILED {cell.name}: {error}", flush=True)
        else:
            print(f"{cell.name}: {'ran' if play else 'built'}", flush=True)
            played.update([kind] if play else [])
    print(f"{len(cells)} cells, {len(played)} of them ran, {failed} failed")
    return 1 if failed else 0


def _kind(table: ConfigPart) -> str:
    """What a run is but for its labels, retention and tests."""
    kind = {key: value for key, value in table.items() if key not in ("evaluation", "readout", "rounds")}
    kind["partition"] = {key: value for key, value in kind["partition"].items() if key != "labels_per_agent"}
    kind["retention"] = "by agent" if isinstance(kind["retention"], list) else "one"
    return json.dumps(kind, sort_keys=True)


def _try(cell: Cell, dataset: Dataset, *, play: bool) -> None:
    first, *others = methods()[cell.of_row.method].candidates
    for candidate in others:
        DEFAULTS.job(tuning_cell(cell.of_row.method, 0), candidate)
    build(DEFAULTS.job(cell, first).config, dataset)
    if play:
        config = DEFAULTS.job(cell, first, **SMALL).config
        with tempfile.TemporaryDirectory() as folder:
            run_experiment(config, Path(folder) / "run", execution=Execution("cpu"), dataset=dataset)


def _few_tested(dataset: Dataset) -> Dataset:
    return replace(dataset, test=Split(dataset.test.inputs[:TESTED], dataset.test.targets[:TESTED]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--fashion", help="folder of Fashion-MNIST; found or downloaded by default")
    parser.add_argument("--released", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
