"""`peermask run`: an experiment from a config to a result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from peermask.cli.options import (
    Config,
    Device,
    Import,
    Interrupt,
    Quiet,
    Set,
    import_plugins,
    parse_seeds,
    print_progress,
    print_result,
)
from peermask.cli.rank_launch import open_ranks, rank_of_command, stop_with_torchrun
from peermask.errors import ConfigError, DivergedError
from peermask.run.rendezvous import Place

if TYPE_CHECKING:
    from peermask.config.experiment import ExperimentConfig
    from peermask.run.execution import Execution
    from peermask.run.jobs import Sweep
    from peermask.run.result import RunResult
    from peermask.store.result import StoredRun
    from peermask.store.sweeps import SweepFolder


@dataclass(frozen=True)
class Request:
    """A run or sweep in the words of the command line."""

    config: Path | None
    overrides: Sequence[str]
    resume: Path | None
    replay: Path | None
    out: Path | None
    vary: Sequence[str]
    seeds: str | None
    imports: Sequence[str]

    @property
    def is_sweep(self) -> bool:
        resumes_sweep = self.resume is not None and (self.resume / "sweep.json").is_file()
        return bool(self.vary) or self.seeds is not None or resumes_sweep

    def check(self, place: Place | None, *, divided: bool, tensorboard: bool) -> None:
        """Refuse options that contradict each other."""
        changed = self.overrides or self.vary or self.seeds
        problems = {
            "--resume uses the config in the run folder; it takes no CONFIG and no --out": (
                self.resume and (self.config or self.out)
            ),
            "--replay repeats a run unchanged; it takes no CONFIG, --resume, --set, --vary or --seeds": (
                self.replay and (self.config or self.resume or self.overrides or self.is_sweep)
            ),
            "--resume of a sweep runs what is missing, unchanged; to add runs, give --vary or --seeds with the same "
            "CONFIG and --out instead": self.resume and self.is_sweep and changed,
            "a sweep runs neither under torchrun nor with --tensorboard; --processes N shares its runs": (
                self.is_sweep and ((place is not None and divided) or tensorboard)
            ),
            "torchrun --max-restarts: give --out, so that restarted ranks find the run": (
                place and place.max_restarts and not (self.out or self.resume)
            ),
        }
        for problem in (problem for problem, is_there in problems.items() if is_there):
            raise ConfigError(problem)

    def sweep(self) -> Sweep:
        from peermask.run.jobs import open_sweep, plan_sweep

        import_plugins(self.imports)
        if self.resume is not None:
            return open_sweep(self.resume)
        seeds = None if self.seeds is None else parse_seeds(self.seeds)
        return plan_sweep(self.out, self.config, self.overrides, self.vary, seeds, self.imports)

    def load(self) -> tuple[ExperimentConfig | None, Sequence[str]]:
        """The config, None of a run that is resumed, and the plug-ins that it needs."""
        from peermask.config.file import load_config
        from peermask.run.manifest import find_recorded_plugins
        from peermask.run.trace import replay_config
        from peermask.store.folder import is_of_fleet

        if self.resume is None and self.replay is None:
            return load_config(self.config, self.overrides, self.imports), self.imports
        if self.resume is not None and is_of_fleet(self.resume):
            how = "resume it with `peermask swarm FLEET` or `peermask node`"
            raise ConfigError(f"{self.resume} was made by a fleet; {how}")
        import_plugins(self.imports)
        if self.replay is not None:
            return replay_config(self.replay), self.imports
        assert self.resume is not None
        return None, [*self.imports, *find_recorded_plugins(self.resume, quiet=True)]  # other ranks need them too

    def check_ranks(self, processes: int, loaded: ExperimentConfig | None) -> None:
        """Refuse more processes than there are agents, before any is started."""
        if processes > 1:
            from peermask.run.runner import config_in
            from peermask.run.start import check_ranks

            check_ranks(processes, loaded or config_in(self.resume or Path(), self.overrides))

    def arguments(self, imports: Sequence[str], **options: object) -> list[str]:
        """The arguments that other ranks need."""
        pairs = [("--set", each) for each in self.overrides] + [("--import", name) for name in imports]
        pairs += [(f"--{key}", str(value)) for key, value in options.items() if value is not None]
        return ["run", *([] if self.config is None else [str(self.config)]), *(word for pair in pairs for word in pair)]


def run(
    config: Config = None,
    set_: Set = None,
    device: Device = "auto",
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
        int | None,
        typer.Option(min=1, help="Divide the agents, or the runs of a sweep, between this many processes here."),
    ] = None,
    backend: Annotated[
        Literal["auto", "gloo", "nccl"],
        typer.Option(help="Backend between processes; auto: NCCL if each has its own GPU."),
    ] = "auto",
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for all processes.")] = 300.0,
    quiet: Quiet = False,
    import_: Import = None,
) -> int:
    """Run an experiment and print accuracy and bytes of every agent."""
    from peermask.run.execution import Execution

    place = rank_of_command(processes)
    size = (processes or 1) if place is None else place.size
    request = Request(config, set_ or (), resume, replay, out, vary or (), seeds, import_ or ())
    request.check(place, divided=size > 1, tensorboard=tensorboard)
    console = Console(quiet=quiet, markup=False)  # paths may hold brackets
    with Interrupt() as interrupt:
        should_stop = stop_with_torchrun(place, interrupt.requested)
        execution = Execution(device, chunk, workers, should_stop=should_stop)
        if request.is_sweep:
            _run_sweep(console, request.sweep(), execution, processes or 1)
            return interrupt.exit_code if interrupt.requested() else 0
        loaded, imports = request.load()
        options = {"device": device, "resume": resume, "chunk": chunk, "workers": workers}
        arguments = request.arguments(imports, **options, backend=backend, wait=wait)
        request.check_ranks(processes or 1, loaded)
        logs = (resume or out or Path("runs", "it")).parent / "tensorboard" if tensorboard else None
        with open_ranks(place, size, arguments, device, backend, wait, should_stop) as ranks:
            execution = replace(execution, ranks=ranks)
            if ranks is not None and not ranks.first:
                from peermask.run.start import take_part

                return interrupt.exit_code if take_part(loaded, execution) == "interrupted" else 0
            result = _run_one(console, request, loaded, execution, logs, again=bool(place and place.restarts))
    if result.status == "interrupted":
        console.print(f"interrupted and saved; resume with: peermask run --resume {result.root}", soft_wrap=True)
        return interrupt.exit_code
    _print_end(console, result)
    return 0


def _print_end(console: Console, result: StoredRun) -> None:
    print_result(console, result)
    print(result.root)


def _run_one(
    console: Console,
    request: Request,
    loaded: ExperimentConfig | None,
    execution: Execution,
    tensorboard: Path | None,
    *,
    again: bool,
) -> RunResult:
    """Run or resume with a display of progress; algorithms of a comparison that finished are shown if one diverged."""
    from peermask.reports.observers import ObserverList, display, loggers
    from peermask.run.result import RunResult
    from peermask.run.runner import resume_experiment, run_experiment

    try:
        with display(console) as shown:
            execution = replace(execution, observer=ObserverList([shown, *loggers(tensorboard)]))
            if loaded is None:
                assert request.resume is not None
                return resume_experiment(request.resume, execution, request.overrides)
            return run_experiment(loaded, request.out, resume=again, execution=execution)
    except DivergedError as error:
        if error.root is not None:
            _print_end(console, RunResult.open(error.root))
        raise


def _run_sweep(console: Console, planned: Sweep, execution: Execution, processes: int) -> None:
    from peermask.compute.device import pick_device
    from peermask.run.jobs import Stopped
    from peermask.store.sweeps import SweepFolder

    pick_device(execution.device)
    with suppress(Stopped):
        planned.run(execution, print_progress(console), processes)
    sweep = SweepFolder.open(planned.root)
    print_sweep(console, sweep)
    console.print(sweep.write_table(), soft_wrap=True, highlight=False)
    print(sweep.root)


def print_sweep(console: Console, sweep: SweepFolder) -> None:
    """Print the table of a sweep, whole where the output is not a terminal."""
    from peermask.reports.tables import sweep_lines, sweep_table

    if sweep.rows:
        if not console.is_terminal:
            console.width = 10_000  # as wide as it needs
        console.print(sweep_table(sweep))
    for line in sweep_lines(sweep):
        console.print(line, soft_wrap=True, highlight=False)
