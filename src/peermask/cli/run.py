"""`peermask run`: an experiment from a config to a result."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from peermask.cli.imports import Import, bring
from peermask.cli.interrupt import Interrupt
from peermask.cli.ranks import open_ranks, rank_of_command, stop_with_torchrun
from peermask.cli.seeds import parse_seeds
from peermask.cli.sweep import sweep
from peermask.errors import ConfigError

if TYPE_CHECKING:
    from peermask.experiment.config import ExperimentConfig

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
    from peermask.experiment.execution import Execution
    from peermask.experiment.playing import take_part
    from peermask.experiment.runner import config_in, resume_experiment, run_experiment
    from peermask.experiment.same_inputs import check_ranks
    from peermask.reports.observers import Together, loggers
    from peermask.reports.tables import agents_table, closing_lines

    loaded, imports = _load(config, set_ or [], resume, replay, import_ or [])
    if processes is not None and processes > 1:
        check_ranks(processes, loaded or config_in(resume or Path(), set_ or ()))
    console = Console(quiet=quiet, markup=False)  # paths may hold brackets
    beside = (resume or out or Path("runs", "it")).parent
    arguments = ["run", *_as_given(config, [*(set_ or ())], imports, device, resume, chunk, workers, backend, wait)]
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        should_stop = stop_with_torchrun(place, interrupt.requested)
        ranks = stack.enter_context(open_ranks(place, processes or 1, arguments, device, backend, wait, should_stop))
        if ranks is not None and not ranks.first:
            status = take_part(loaded, Execution(device, chunk, workers, should_stop=should_stop, ranks=ranks))
            return interrupt.exit_code if status == "interrupted" else 0
        with display(console) as shown:
            observer = Together([shown, *loggers(beside / "tensorboard" if tensorboard else None)])
            execution = Execution(device, chunk, workers, observer, should_stop, ranks=ranks)
            if loaded is None:
                assert resume is not None
                result = resume_experiment(resume, execution, set_ or ())
            else:
                again = place is not None and place.restarts > 0
                result = run_experiment(loaded, out, resume=again, execution=execution)
    if result.status == "interrupted":
        console.print(f"interrupted and saved; resume with: peermask run --resume {result.root}", soft_wrap=True)
        return interrupt.exit_code
    console.print(agents_table(result))
    for line in closing_lines(result):
        console.print(line, soft_wrap=True, highlight=False)
    print(result.root)
    return 0


def _load(
    config: Path | None, set_: list[str], resume: Path | None, replay: Path | None, imports: list[str]
) -> tuple[ExperimentConfig | None, list[str]]:
    """The config, None of a run that is resumed, and the plug-ins that it needs."""
    from peermask.experiment.config_file import load_config
    from peermask.experiment.made_with import find_made_with
    from peermask.experiment.manifest import is_of_fleet
    from peermask.experiment.trace_file import replayed

    if resume is not None:
        if is_of_fleet(resume):
            raise ConfigError(f"{resume} was made by a fleet; resume it with `peermask swarm FLEET` or `peermask node`")
        bring(imports)
        return None, [*imports, *find_made_with(resume, lambda _: None)]  # other ranks need them too
    if replay is not None:
        bring(imports)
        return replayed(replay), imports
    return load_config(config, set_, imports), imports


def _as_given(
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
