"""A run from a config to a result: reproducible, resumable, and honest about what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import peermask
from commands import Small, stop_after
from peermask.errors import DivergedError, RunError
from peermask.reports.tables import closing_lines
from peermask.run import loop
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import resume_experiment, run_experiment
from peermask.run.simulator import Simulator
from peermask.store.checkpoint import Checkpoint, checkpoint_name, list_checkpoints, list_masks, save_checkpoint
from peermask.store.folder import RunFolder
from peermask.task import format_bytes


def test_a_run_folder_holds_everything(small: Small, tmp_path: Path) -> None:
    result = run_experiment(small(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    metrics, traffic = pd.read_csv(folder.metrics), pd.read_csv(folder.traffic)
    assert sorted(metrics["round"].unique()) == [2, 4]
    assert len(metrics) == 2 * 4
    assert len(traffic) == 4 * 4
    assert (traffic["links"] == 2).all()
    assert (traffic["kind"] == "delta").all()  # the first builds on the opening
    sent = (traffic["links"] * traffic["coded_bytes"]).sum()
    assert metrics[metrics["round"] == 4]["sent_bytes"].sum() == pytest.approx(sent)
    assert result.manifest["dataset"]["name"] == "digits"
    assert result.manifest["versions"]["torch"]
    assert result.status == "finished"
    assert len(list_checkpoints(folder.checkpoints)) == 2
    assert RunResult.open(tmp_path / "run").hash == result.hash
    assert resume_experiment(tmp_path / "run").hash == result.hash  # which only reads it
    models = result.local_models()
    assert len(models) == 4
    assert models[0](torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    kept = float((models[0].get_parameter("network.1.weight") != 0).float().mean())
    assert kept == pytest.approx(0.9, abs=0.01)


def test_the_same_config_gives_the_same_hash_and_another_seed_another(small: Small, tmp_path: Path) -> None:
    first = run_experiment(small(), tmp_path / "a", execution=Execution(workers=1))
    again = run_experiment(small(), tmp_path / "b", execution=Execution(workers=3))
    other = run_experiment(small(seed=1), tmp_path / "c")
    assert first.hash == again.hash != other.hash


def test_a_run_of_more_rounds_starts_its_personal_masks_again(small: Small, tmp_path: Path) -> None:
    """Half of twelve rounds are more than the four that were played: until then the personal mask is the agreed one."""
    run_experiment(small(algorithm="accord"), tmp_path / "run")
    resumed = resume_experiment(tmp_path / "run", stop_after(1), ["rounds=12"])
    states = resumed.last_checkpoint(resumed.manifest["frozen_checksum"]).states
    assert torch.equal(states["personal.scores"], states["scores"])


def test_a_run_cut_off_between_masks_and_checkpoint_ends_with_both(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(rounds=6, checkpoint={"every": 2, "masks": True})
    whole = run_experiment(config, tmp_path / "whole")

    def full(folder: Path, checkpoint: Checkpoint, ready: Callable[[], object]) -> Path:
        if checkpoint.progress.round == 4:
            raise RunError("cannot write x: No space left on device")
        return save_checkpoint(folder, checkpoint, ready)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", full)
        with pytest.raises(RunError, match="No space left"):
            run_experiment(config, tmp_path / "cut")
    assert resume_experiment(tmp_path / "cut").hash == whole.hash
    assert list(list_masks(tmp_path / "cut" / "masks")) == list(list_masks(tmp_path / "whole" / "masks")) == [2, 4, 6]


def test_an_interrupted_comparison_goes_on_with_the_arm_it_was_in(small: Small, tmp_path: Path) -> None:
    config = small(compare=["ind-mask"])
    whole = run_experiment(config, tmp_path / "whole")
    run_experiment(config, tmp_path / "cut", execution=stop_after(2))
    assert RunResult.open(tmp_path / "cut").waiting == ("ind-mask",)
    resumed = resume_experiment(tmp_path / "cut")
    assert RunResult.open(tmp_path / "cut").waiting == ()
    assert (resumed.hash, resumed.compared[0].hash) == (whole.hash, whole.compared[0].hash)


def test_a_plateau_ends_the_run(small: Small, tmp_path: Path) -> None:
    config = small(rounds=200, stop={"patience": 2, "tolerance": 1.0})
    result = run_experiment(config, tmp_path / "run")
    assert result.status == "converged"
    assert result.round == 6  # the first evaluation is a rise from nothing, two more are not
    assert resume_experiment(tmp_path / "run").hash == result.hash


def test_a_loss_that_is_no_number_names_round_and_agent(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peermask.compute.network import Network

    plain, calls = Network.gradient, 0

    def poisoned(self: Network, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        gradient, loss = plain(self, *arguments)
        return gradient, loss if calls != 11 else loss * math.nan  # round 3, third of four agents

    monkeypatch.setattr(Network, "gradient", poisoned)
    with pytest.raises(DivergedError, match=r"agent 2 is nan in round 3; the last good checkpoint is .*round-000002"):
        run_experiment(small(), tmp_path / "run", execution=Execution(workers=1))
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        resume_experiment(tmp_path)
    with pytest.raises(RunError, match="there is no folder"):
        RunResult.open(tmp_path / "nowhere")


def test_masks_are_on_the_disk_before_a_checkpoint_of_the_same_round(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, seen = loop.save_checkpoint, []

    def watched(folder: Path, checkpoint: Checkpoint, ready: Callable[[], object]) -> Path:
        number = checkpoint.progress.round

        def waited() -> None:
            ready()
            assert number in list_masks(tmp_path / "run" / "masks")
            assert not (folder / checkpoint_name(number)).exists()
            seen.append(number)

        return save(folder, checkpoint, waited)

    monkeypatch.setattr(loop, "save_checkpoint", watched)
    run_experiment(small(rounds=2, checkpoint={"every": 1, "masks": True}), tmp_path / "run")
    assert seen == [1, 2]


def test_one_agent_with_a_server_alone_sends_two_messages_a_round(small: Small, tmp_path: Path) -> None:
    result = run_experiment(small(agents=1, algorithm="fl", rounds=2, retention=0.3), tmp_path / "run")
    each = format_bytes(result.sent_bytes / 2 / 2)
    assert closing_lines(result)[-2].startswith(f"a message: {each}; ")


def test_a_gpu_that_is_full_is_one_line(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(Simulator, "play", full)
    with pytest.raises(RunError, match="too little memory for so many agents at once; use a smaller --chunk"):
        run_experiment(small(), tmp_path / "run")


def test_a_device_that_is_not_there(small: Small, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="'tpu' is not one of cpu, cuda, cuda:N, auto"):
        run_experiment(small(), tmp_path / "run", execution=Execution(device="tpu"))
    if not torch.cuda.is_available():
        with pytest.raises(RunError, match="finds no CUDA device; use --device cpu"):
            run_experiment(small(), tmp_path / "run", execution=Execution(device="cuda"))
    assert not (tmp_path / "run").exists()


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    roots = [run_experiment(small(rounds=1)).root for _ in range(3)]
    assert len(set(roots)) == 3


def test_models_of_a_run_with_data_and_a_module_of_ones_own(small: Small, tmp_path: Path) -> None:
    images, labels = torch.rand(60, 1, 6, 6).numpy(), torch.arange(60).numpy() % 4
    dataset = peermask.from_arrays(images, labels, images, labels)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    config = small(partition={"name": "iid"}, data={"fraction": 1.0})
    result = run_experiment(config, tmp_path / "run", dataset=dataset, module=module)
    read = RunResult.open(tmp_path / "run")
    for models in (result.local_models(), read.local_models(dataset, module)):
        assert [model(torch.rand(2, 1, 6, 6)).shape for model in models] == [(2, 4)] * 4
    with pytest.raises(RunError, match=r"another network than its config names; give it again: local_models\(module="):
        read.local_models()
