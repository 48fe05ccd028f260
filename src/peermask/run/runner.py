"""Runs of experiments: rounds, evaluations, tables, checkpoints; they stop cleanly and resume exactly."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import as_config, read_config
from peermask.data.dataset import Dataset
from peermask.errors import DivergedError, RunError
from peermask.files import as_path, write_atomically, write_json, writing
from peermask.run.build import Experiment
from peermask.run.data_summary import quick_duplicates
from peermask.run.execution import Execution
from peermask.run.loop import play
from peermask.run.manifest import (
    check_same,
    check_same_config,
    checkpoint_hashes,
    extend,
    find_recorded_plugins,
    is_over,
    manifest,
    note_plugins,
    summary_of,
)
from peermask.run.result import RunResult
from peermask.run.start import OVER, build_arms, device_for, share_checkpoint
from peermask.store.checkpoint import (
    Checkpoint,
    Progress,
    checkpoint_name,
    forget_checkpoints_after,
    forget_masks_after,
    last_good,
)
from peermask.store.folder import RunFolder, check_tables, clear_leftovers, lock_folder, read_manifest, write_result
from peermask.store.table import check_extents, forget_after

logger = logging.getLogger(__name__)


def run_experiment(
    config: ExperimentConfig | Mapping[str, Any] | Path | str,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    execution: Execution | None = None,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
) -> RunResult:
    """Run an experiment and write its tables, checkpoints and result to a folder.

    A config that compares algorithms gives one folder for each, inside `out`; their results are in `compared`.

    Args:
        config: What to run: a config, plain values as for `make_config`, or the path of a config file.
        out: The run folder; by default a new one under `runs/`.
        resume: Continue the run in `out`, perhaps for more rounds. See `resume_experiment`.
        execution: The device, and how to watch and stop the run.
        dataset: Data of your own instead of the config's: see `from_arrays` and `from_torch`.
        module: A network of your own instead of the config's. Its convolutions and linear layers are masked.

    Returns:
        The result, which can be read again with `RunResult.open`.

    Raises:
        PeermaskError: A mistake in the config or the data, a folder in use, a full disk or memory, or a loss that is
            NaN or infinite. The message says what to do.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> result.status, result.round, len(result.agents)
        ('finished', 2, 4)
    """
    execution = execution or Execution()
    config = as_config(config)
    device = device_for(config, execution.device)
    if execution.ranks is not None:
        execution.ranks.broadcast_text(config.toml())
    experiments = build_arms(config, execution, dataset, module)
    for note in next(iter(experiments.values())).notes:
        logger.warning(note)
    folder = RunFolder(as_path(out, "out") if out is not None else _new_path(config.name))
    if execution.ranks is not None:
        execution.ranks.control.remedy = f"go on with `peermask run --resume {folder.path}`"
    if len(experiments) > 1:
        result = _run_comparison(config, experiments, folder, device, execution, resume=resume)
    else:
        ((name, experiment),) = experiments.items()
        result = _run(experiment, name, folder, device, execution, resume=resume)
    compared = tuple(replace(one, dataset=dataset, module=module) for one in result.compared)
    return replace(result, dataset=dataset, module=module, compared=compared)


def _run_comparison(
    config: ExperimentConfig,
    experiments: Mapping[str, Experiment],
    whole: RunFolder,
    device: torch.device,
    execution: Execution,
    *,
    resume: bool,
) -> RunResult:
    """Run each algorithm in a folder inside that of the comparison, which is locked meanwhile."""
    compare = whole.path / "compare.toml"
    folders = {name: RunFolder(whole.path / name) for name in experiments}
    if resume := resume and compare.is_file():
        check_same_config(read_config(compare), config, whole)
    else:
        whole.check_free()
    ended = resume and all(is_over(folders[name], experiments[name].config) for name in folders)
    with nullcontext() if ended else lock_folder(whole):  # it is only read, perhaps where nothing can be written
        if not resume:
            whole.create()
            whole.checkpoints.rmdir()
        if not ended:
            write_atomically(compare, config.toml().encode())
        results: list[RunResult] = []
        diverged: DivergedError | None = None
        for place, (name, experiment) in enumerate(experiments.items()):
            key = f"compare[{place - 1}].lr" if place else "algorithm.lr"
            try:
                results.append(_run(experiment, name, folders[name], device, execution, resume=resume, key=key))
            except DivergedError as error:  # the other algorithms may do well
                diverged = diverged or DivergedError(f"{name}: {error}")
                diverged.root = whole.path
                if execution.ranks is not None:  # all ranks have ended
                    break
                continue
            if results[-1].status == "interrupted":
                break
        if diverged is not None and not (results and results[-1].status == "interrupted"):
            raise diverged
    return replace(results[0], root=whole.path, compared=tuple(results[1:]), status=results[-1].status)


def resume_experiment(
    path: Path | str,
    execution: Execution | None = None,
    overrides: Iterable[str] = (),
    *,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
) -> RunResult:
    """Continue the run or comparison in a folder, with the config it was started with.

    The result has the same hash as that of a run without the interruption. A finished run is
    only read, unless `overrides` extend it. Plug-ins it was made with are imported if you named them before,
    and are as they were; otherwise import them yourself, or name them with `--import` on the command line.

    Args:
        path: The run folder.
        execution: The device, and how to watch and stop the run.
        overrides: `["rounds=800"]` extends the run, finished or not; nothing else can be changed.
        dataset: The dataset that was given to `run_experiment`, if one was.
        module: The module that was given to `run_experiment`, if one was.

    Returns:
        The result.

    Raises:
        RunError: The folder is not a run, is in use, or is damaged.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> stopped = peermask.Execution(should_stop=lambda: True)
        >>> peermask.run_experiment(config, "run", execution=stopped).status
        'interrupted'
        >>> peermask.resume_experiment("run").status
        'finished'
    """
    root = as_path(path, "path")
    config = config_in(root, overrides)
    return run_experiment(config, root, resume=True, execution=execution, dataset=dataset, module=module)


def config_in(root: Path, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Read the config of the run or comparison in a folder, with its plug-ins."""
    for name in ("compare.toml", "config.toml"):
        if (root / name).is_file():
            imports = find_recorded_plugins(root, quiet=True)  # a change is reported when the run is resumed
            return read_config(root / name, overrides).model_copy(update={"imports": imports or None})
    RunFolder(root).check_run()
    raise RunError(f"{root} has no config that can be read")


def _run(
    experiment: Experiment,
    name: str,
    folder: RunFolder,
    device: torch.device,
    execution: Execution,
    *,
    resume: bool,
    key: str = "algorithm.lr",
) -> RunResult:
    if resume := resume and folder.is_run:
        check_same(experiment, folder)
        if is_over(folder, experiment.config):
            return _read(folder, execution)  # without a lock, for the same reason
    else:
        folder.check_free()
    with lock_folder(folder):
        if resume and is_over(folder, experiment.config):  # the process that had it has just finished
            return _read(folder, execution)
        checkpoint = _prepare(experiment, folder, device, resume=resume)
        progress = Progress(0, experiment.config.hash, experiment.frozen.checksum)
        start = checkpoint or Checkpoint(progress, {}, {}, {})
        if execution.ranks is not None:
            shared = share_checkpoint(execution.ranks, experiment.config.agents, folder, start)
            assert shared is not None  # only the first rank says that a run is over
            _, start = shared
        try:
            played = play(experiment, name, folder, device, execution, start)
        except DivergedError as error:
            message = str(error).replace("algorithm.lr", key)  # where the config of a comparison has it
            with suppress(RunError):  # the loss is what the user must know of, not a full disk
                write_json(folder.diverged, {"message": message})
            raise DivergedError(message) from error
        if played.status != "interrupted":
            write_result(folder, summary_of(experiment, folder, played.status, played.progress, played.hash))
        return replace(RunResult.open(folder.path), status=played.status)


def _read(folder: RunFolder, execution: Execution) -> RunResult:
    """Read a finished run; other ranks have nothing to do."""
    if execution.ranks is not None:
        execution.ranks.broadcast_text(OVER)
    return RunResult.open(folder.path)


def _prepare(experiment: Experiment, folder: RunFolder, device: torch.device, *, resume: bool) -> Checkpoint | None:
    """Make the folder, or find where the run in it stood."""
    clear_leftovers(folder)
    if not resume:
        folder.create()
        duplicates = quick_duplicates(experiment.dataset, experiment.samples)
        write_json(folder.manifest, {**manifest(experiment, device), "duplicates": duplicates})
        write_atomically(folder.config, experiment.config.toml().encode())  # last: a folder with a config is a run
        return None
    folder.diverged.unlink(missing_ok=True)
    extend(folder, experiment.config)
    note_plugins(folder, experiment.config)
    hashes = checkpoint_hashes(experiment.config.hash, read_manifest(folder.manifest))
    checkpoint = last_good(folder.checkpoints, hashes, experiment.frozen.checksum)
    done = checkpoint.progress.round if checkpoint else 0
    forget_checkpoints_after(folder.checkpoints, done)
    forget_masks_after(folder.masks, done)
    for table in (folder.metrics, folder.traffic):
        forget_after(table, done)
    config = experiment.config
    last = {done} if done == config.rounds else set()
    check_tables(folder, config.agents, {*range(config.evaluation.every, done + 1, config.evaluation.every), *last})
    if checkpoint is not None:
        check_extents(folder.path, checkpoint.progress.tables, folder.checkpoints / checkpoint_name(done))
    return checkpoint


def _new_path(name: str) -> Path:
    """Create a new folder at once: another run may begin in the same second."""
    begun = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    for count in itertools.count(1):
        path = Path("runs") / (begun if count == 1 else f"{begun}-{count}")
        with writing(path), suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    return path
