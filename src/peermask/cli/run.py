"""`peermask run`: an experiment from a config to a result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from peermask.cli.options import Import, Interrupt, import_plugins, parse_seeds
from peermask.errors import ConfigError, DivergedError, RunError
from peermask.run.rank_control import Place, rank_from_env

if TYPE_CHECKING:
    from peermask.config.experiment import ExperimentConfig
    from peermask.run.rank_group import Backend, Ranks
    from peermask.run.result import RunResult
    from peermask.run.sweep import Row

# The ranks of `peermask run`: one of torchrun's, or this process and those it starts.


@contextmanager
def open_ranks(
    place: Place | None,
    processes: int,
    arguments: Sequence[str],
    device: str,
    backend: Backend,
    limit_s: float,
    should_stop: Callable[[], bool],
) -> Iterator[Ranks | None]:
    """Yield None where this process computes all agents."""
    if (processes if place is None else place.size) == 1:
        yield None
        return
    import torch.distributed as dist

    if not dist.is_available():
        raise RunError("this PyTorch was built without torch.distributed, which several processes need")
    from peermask.cli.rank_launch import launch, parent_fate
    from peermask.run.rank_group import join_ranks, own_device
    from peermask.run.rendezvous import Waiting, listen

    with ExitStack() as stack:
        fate: Callable[[int], str | None] = parent_fate
        listener = None
        if place is None:
            listener = stack.enter_context(listen("127.0.0.1"))
            place = Place(0, processes, 0, processes, "127.0.0.1", listener.getsockname()[1])
            own_device(device, place)  # a wrong one is said once
            fate = stack.enter_context(launch(place, _run_command, arguments))
        waiting = Waiting(limit_s, should_stop, fate)
        yield stack.enter_context(join_ranks(place, device, backend=backend, waiting=waiting, listener=listener))


def _run_command(arguments: Sequence[str]) -> None:
    from peermask.cli.main import main

    main(list(arguments))


def rank_of_command(processes: int | None) -> Place | None:
    """The rank that torchrun or a batch system made of this process; they then set the number of processes."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported: it logs pages about a lost rank
    place = rank_from_env()
    if place is not None and processes is not None:
        raise ConfigError(
            f"--processes {processes}: this is rank {place.rank} of {place.size} already, started by torchrun or such; "
            "leave --processes out"
        )
    return place


def stop_with_torchrun(place: Place | None, requested: Callable[[], bool]) -> Callable[[], bool]:
    """Stop on request, or because the torchrun that started this rank has died."""
    parent = os.getppid()
    if place is None or place.store_owner != "torchrun":
        return requested
    return lambda: requested() or os.getppid() != parent


# `peermask run --vary ... --seeds N`: many runs of one experiment, and a table of them.


def sweep(
    config: Path | None,
    overrides: Sequence[str],
    vary: Sequence[str],
    seeds: Sequence[int] | None,
    out: Path | None,
    device: str,
    chunk: int | None,
    workers: int | None,
    imports: Sequence[str],
    *,
    quiet: bool,
) -> int:
    from peermask.compute.device import pick_device
    from peermask.run.execution import Execution
    from peermask.run.format import format_figure
    from peermask.run.sweep import best, plan_sweep, spread, write_table

    console = Console(quiet=quiet, markup=False, highlight=False)
    pick_device(device)
    plan = plan_sweep(out, config, overrides, vary, seeds, imports)
    begun = time.monotonic()

    def tell(done: int, total: int, name: str) -> None:
        console.print(f"{time.monotonic() - begun:7.0f} s  {done:4d} of {total}  {name}", soft_wrap=True)

    with Interrupt() as interrupt:
        plan.run(Execution(device, chunk, workers, should_stop=interrupt.requested), tell)
    rows = plan.rows()
    if rows:
        console.print(_table(rows))
        console.print(write_table(plan.root, rows), soft_wrap=True)
    for line in plan.diverged:
        console.print(line, soft_wrap=True)
    chosen = best(rows)
    if chosen is not None:
        reached = f"{format_figure(chosen.figure, spread(chosen.validation)[0])} on held-out data"
        console.print(f"best: {chosen.variation or 'as it is'} with {chosen.algorithm}, {reached}", soft_wrap=True)
    elif rows:
        console.print("nothing is held out (data.validation = 0), so no best run is chosen")
    if plan.missing:
        console.print(
            f"{plan.missing} of {len(plan.cells)} runs are missing; rerun the same command to resume", soft_wrap=True
        )
    print(plan.root)
    return interrupt.exit_code if interrupt.requested() else 0


def _table(rows: Sequence[Row]) -> Table:
    from peermask.run.format import format_bytes
    from peermask.run.sweep import spread
    from peermask.store.arrays import REPORTED

    table = Table(
        title="mean and standard deviation over seeds",
        title_justify="left",
        caption=f"held out, test: mean over {REPORTED}",
        caption_justify="left",
    )
    table.add_column("variation")
    table.add_column("algorithm")
    for heading in ("seeds", "held out", "test", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        accuracies = (_shown(row.figure, *spread(row.validation)), _shown(row.figure, *spread(row.test)))
        table.add_row(
            row.variation or "as it is", row.algorithm, str(row.seeds), *accuracies, format_bytes(row.sent_bytes)
        )
    return table


def _shown(figure: str, mean: float, deviation: float) -> str:
    from peermask.run.format import format_figure

    if isnan(mean) or figure == "r2":
        return format_figure(figure, mean) if isnan(deviation) else f"{mean:.3f} ± {deviation:.3f}"
    return f"{100 * mean:.1f} %" if isnan(deviation) else f"{100 * mean:.1f} ± {100 * deviation:.1f} %"


Config = Annotated[Path | None, typer.Argument(help="A TOML file; without one, the default experiment.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. algorithm.lr=0.1.")
]


def run(
    config: Config = None,
    set_: Set = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The run folder; a new one under runs/ by default.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume the run in this folder; --set rounds=N extends it.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Replay an asynchronous fleet, with the trace in its collected run."),
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Agents computed at once; by default as many as fit.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Agents computed in parallel on a CPU; by default one per core.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log to the folder `tensorboard` next to the run.")
    ] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,...", help="A sweep: run every value, and every combination if repeated."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N|LIST", help="A sweep over seeds: their number, or a list: 3, or 0,1,2.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Divide the agents between this many processes on this machine.")
    ] = None,
    backend: Annotated[
        Literal["auto", "gloo", "nccl"],
        typer.Option(help="Backend between processes; auto: NCCL if each has its own GPU."),
    ] = "auto",
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for all processes.")] = 300.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the run folder only.")] = False,
    import_: Import = None,
) -> int:
    """Run an experiment and print accuracy and bytes of every agent."""
    if resume is not None and (config is not None or out is not None):
        raise ConfigError("--resume uses the config in the run folder; it takes no CONFIG and no --out")
    if replay is not None and (config is not None or resume is not None or set_ or vary or seeds is not None):
        raise ConfigError("--replay repeats a run unchanged; it takes no CONFIG, --resume, --set, --vary or --seeds")
    place = rank_of_command(processes)
    if vary or seeds is not None:
        if resume is not None or tensorboard:
            raise ConfigError("a sweep takes no --resume (rerun the same command to resume) and no --tensorboard")
        if processes is not None or (place is not None and place.size > 1):
            raise ConfigError(
                "a sweep takes no --processes and no torchrun; start the same command several times instead"
            )
        chosen = None if seeds is None else parse_seeds(seeds)
        return sweep(config, set_ or (), vary or (), chosen, out, device, chunk, workers, import_ or (), quiet=quiet)
    if place is not None and place.max_restarts and out is None and resume is None:
        raise ConfigError("torchrun --max-restarts: give --out, so that restarted ranks find the run")
    from peermask.cli.display import display
    from peermask.reports.observers import ObserverList, loggers
    from peermask.run.execution import Execution
    from peermask.run.play import check_ranks, take_part
    from peermask.run.result import RunResult
    from peermask.run.runner import config_in, resume_experiment, run_experiment

    loaded, imports = _load(config, set_ or [], resume, replay, import_ or [])
    if processes is not None and processes > 1:
        check_ranks(processes, loaded or config_in(resume or Path(), set_ or ()))
    console = Console(quiet=quiet, markup=False)  # paths may hold brackets
    beside = (resume or out or Path("runs", "it")).parent
    arguments = [
        "run",
        *_rank_arguments(config, [*(set_ or ())], imports, device, resume, chunk, workers, backend, wait),
    ]
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        should_stop = stop_with_torchrun(place, interrupt.requested)
        ranks = stack.enter_context(open_ranks(place, processes or 1, arguments, device, backend, wait, should_stop))
        if ranks is not None and not ranks.first:
            status = take_part(loaded, Execution(device, chunk, workers, should_stop=should_stop, ranks=ranks))
            return interrupt.exit_code if status == "interrupted" else 0
        try:
            with display(console) as shown:
                observer = ObserverList([shown, *loggers(beside / "tensorboard" if tensorboard else None)])
                execution = Execution(device, chunk, workers, observer, should_stop, ranks=ranks)
                if loaded is None:
                    assert resume is not None
                    result = resume_experiment(resume, execution, set_ or ())
                else:
                    again = place is not None and place.restarts > 0
                    result = run_experiment(loaded, out, resume=again, execution=execution)
        except DivergedError as error:
            if error.root is not None:
                _print_result(console, RunResult.open(error.root))
            raise
    if result.status == "interrupted":
        console.print(f"interrupted and saved; resume with: peermask run --resume {result.root}", soft_wrap=True)
        return interrupt.exit_code
    _print_result(console, result)
    return 0


def _print_result(console: Console, result: RunResult) -> None:
    from peermask.reports.tables import agents_table, closing_lines

    console.print(agents_table(result))
    for line in closing_lines(result):
        console.print(line, soft_wrap=True, highlight=False)
    print(result.root)


def _load(
    config: Path | None, set_: list[str], resume: Path | None, replay: Path | None, imports: list[str]
) -> tuple[ExperimentConfig | None, list[str]]:
    """The config, None of a run that is resumed, and the plug-ins that it needs."""
    from peermask.config.file import load_config
    from peermask.run.resume import find_recorded_plugins
    from peermask.run.trace_file import replay_config
    from peermask.store.folder import is_of_fleet

    if resume is not None:
        if is_of_fleet(resume):
            raise ConfigError(f"{resume} was made by a fleet; resume it with `peermask swarm FLEET` or `peermask node`")
        import_plugins(imports)
        return None, [*imports, *find_recorded_plugins(resume, quiet=True)]  # other ranks need them too
    if replay is not None:
        import_plugins(imports)
        return replay_config(replay), imports
    return load_config(config, set_, imports), imports


def _rank_arguments(
    config: Path | None,
    set_: list[str],
    imports: list[str],
    device: str,
    resume: Path | None,
    chunk: int | None,
    workers: int | None,
    backend: str,
    wait: float,
) -> list[str]:
    """The arguments that other ranks need."""
    given = [] if config is None else [str(config)]
    for change in set_:
        given += ["--set", change]
    for name in imports:
        given += ["--import", name]
    options = {"--device": device, "--resume": resume, "--chunk": chunk, "--workers": workers}
    for name, value in {**options, "--backend": backend, "--wait": wait}.items():
        given += [] if value is None else [name, str(value)]
    return given
