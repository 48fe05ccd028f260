"""`peermask plan`: what a run would be, before any of it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from peermask.cli.imports import Import
from peermask.cli.run import Config, Set

if TYPE_CHECKING:
    import torch

    from peermask.experiment.plan import Plan


def plan(
    config: Config = None,
    set_: Set = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes to divide agents between, each on its own machine or GPU.")
    ] = 1,
    import_: Import = None,
) -> None:
    """Check a config and print what it needs, and all its defaults."""
    from peermask.engine.device import enough_memory, pick_device
    from peermask.experiment.build import build
    from peermask.experiment.config_file import load_config
    from peermask.experiment.plan import make_plan

    console = Console(highlight=False)
    resolved = load_config(config, set_ or (), import_ or ())
    where = pick_device(device)
    with Console(stderr=True).status(f"looking at {resolved.agents} agents"), enough_memory(where):
        made = [make_plan(name, build(arm), where, processes) for name, arm in resolved.arms().items()]
    console.print(_table(made, where))
    for note in dict.fromkeys(note for one in made for note in one.notes):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if refused := made[0].refused:
        console.print(f"cannot be masked: {', '.join(refused)}", markup=False, soft_wrap=True)
    console.print(resolved.toml(), markup=False)


def _table(plans: list[Plan], device: torch.device) -> Table:
    from peermask.reports.tables import bytes_human, percent

    table = Table(title=f"plan on {device}", title_justify="left")
    table.add_column("")
    for made in plans:
        table.add_column(made.name, justify="right")
    rows: dict[str, list[str]] = {
        "agents": [str(p.agents) for p in plans],
        "directed links": [str(p.links) for p in plans],
        "masked weights": [f"{p.weights:,}" for p in plans],
        "  of which a mask keeps": [_range(percent(p.kept[0]), percent(p.kept[1])) for p in plans],
        "all parameters": [f"{p.parameters:,}" for p in plans],
        **{f"  {fate}": [_numbers(p.account[fate]) for p in plans] for fate in plans[0].account},
        "training samples per agent": [_range(*map(str, p.samples)) for p in plans],
        "agents at once": [str(p.chunk) for p in plans],
        "gradient path": [p.path for p in plans],
        "memory of a process, about": [bytes_human(p.memory) for p in plans],
        "bytes per message, as a bitmap": [bytes_human(p.message_bytes) for p in plans],
        "  in a round, over all links": [bytes_human(p.message_bytes * p.links) for p in plans],
        "  in all rounds": [bytes_human(p.message_bytes * p.links * p.rounds) for p in plans],
        "a node remembers, per neighbour": [_remembered(p) for p in plans],
        "  of so many neighbours": [str(p.remembered) for p in plans],
        "checkpoint": [bytes_human(p.checkpoint) for p in plans],
        "time without evaluation, about": ["-" if p.seconds is None else f"{max(p.seconds, 1):.0f} s" for p in plans],
    }
    for heading, cells in rows.items():
        table.add_row(heading, *cells)
    return table


def _remembered(plan: Plan) -> str:
    from peermask.reports.tables import bytes_human

    return f"{bytes_human(plan.known_bytes)}, {plan.known_bytes / plan.weights:.1f} bytes a weight"


def _numbers(account: tuple[int, int]) -> str:
    tensors, numbers = account
    return f"{numbers:,} in {tensors} tensor{'s' * (tensors != 1)}"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
