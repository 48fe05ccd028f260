"""Accuracy over an agent's own samples, whatever the size of its set, by either readout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from commands import Small
from peermask.algorithms import algorithms
from peermask.compute.network import build_network
from peermask.config.file import load_config, make_config
from peermask.data.arrays import from_arrays
from peermask.errors import RunError
from peermask.files import read_json, write_json
from peermask.models.architectures import mlp
from peermask.models.outputs import Readout
from peermask.reports.tables import agents_table, closing_lines
from peermask.run.assemble import assemble
from peermask.run.build import build
from peermask.run.metrics import SAMPLES_AT_ONCE_ON_CPU, evaluate, weighted_accuracy
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment

COUNTS = torch.tensor([[4.0, 0.0, 1.0], [0.0, 2.0, 0.0], [1.0, 1.0, 1.0]])  # training samples of each label


@pytest.mark.parametrize("readout", ["all", "own"])
def test_each_agent_is_scored_on_its_own_samples(readout: Readout) -> None:
    """Against each sample by itself: its largest logit, and its largest among the labels that have a count."""
    rng = np.random.default_rng(0)
    count = SAMPLES_AT_ONCE_ON_CPU + 5  # two passes, the second of which is not full
    images, labels = rng.random((count, 1, 4, 4), dtype=np.float32), rng.integers(0, 3, count)
    dataset = from_arrays(images, labels, images, labels, classes=("a", "b", "c"))
    network = build_network(mlp(dataset.shape, 3, hidden=(5,)), dataset.shape, 3)
    params = torch.randn(3, network.layout.total, generator=torch.Generator().manual_seed(0))
    indices = [np.arange(count), np.array([3, 1]), np.array([], dtype=np.int64)]
    score = evaluate(network, params, dataset, dataset.test, indices, COUNTS, readout)
    for agent, own in enumerate(indices[:2]):
        logits = network.outputs(params[agent : agent + 1], dataset.normalise(dataset.test.inputs[own])[None])[0]
        held = COUNTS[agent].nonzero()[:, 0].tolist()
        right_all, right_own = [], []
        for row, label in zip(logits.tolist(), labels[own].tolist(), strict=True):
            right_all.append(max(range(3), key=row.__getitem__) == label)
            right_own.append(max(held, key=row.__getitem__) == label)
        assert float(score.figures["accuracy_all"][agent]) == pytest.approx(np.mean(right_all))
        assert float(score.figures["accuracy_own"][agent]) == pytest.approx(np.mean(right_own))
    assert score.main is (score.figures["accuracy_all"] if readout == "all" else score.figures["accuracy_own"])
    assert all(bool(column[2].isnan()) for column in (*score.figures.values(), score.loss))


def test_labels_are_weighted_as_in_the_training_data() -> None:
    """Agent 0 trains on labels 0 and 1 in shares 3/4 and 1/4, and gets 1 of 2 and 4 of 8 right, plainly 5 of 10.

    Agent 1 has the same shares and gets 2 of 2 and 4 of 8 right: 3/4 · 1 + 1/4 · 1/2, plainly 6 of 10. Agent 2 trains
    on label 2, too, of which there is no test sample: of 2/6, 1/6 and 3/6 the first two count, as 2/3 and 1/3.
    """
    right = torch.tensor([[1.0, 4, 0], [2, 4, 0], [2, 4, 0]])
    samples = torch.tensor([[2.0, 8, 0], [2, 8, 0], [2, 8, 0]])
    counts = torch.tensor([[3.0, 1, 0], [3, 1, 0], [2, 1, 3]])
    assert weighted_accuracy(right, samples, counts).tolist() == pytest.approx([0.5, 7 / 8, 5 / 6])


@pytest.mark.parametrize("partition", ["labels", "dirichlet", "shards", "quantity", "iid"])
def test_counts_are_of_the_samples_an_agent_trains_on(partition: str) -> None:
    """The weighted accuracy of a run, from every test image by itself and a count of the training labels."""
    experiment = build(
        make_config({"agents": 4, "retention": 0.3, "partition": partition, "model": "mlp", "readout": "own"})
    )
    _, feed = assemble(experiment, torch.device("cpu"))
    data = experiment.dataset
    params = 0.1 * torch.randn(4, feed.network.layout.total, generator=torch.Generator().manual_seed(1))
    score = feed.test(params)
    for agent, own in enumerate(experiment.samples):
        trained = data.train.targets[torch.from_numpy(own.train)]
        logits = feed.network.outputs(params[agent : agent + 1], data.normalise(data.test.inputs[own.test])[None])[0]
        held = torch.unique(trained)
        right = held[logits[:, held].argmax(1)] == data.test.targets[own.test]
        assert float(score.main[agent]) == pytest.approx(float(right.float().mean()))
        shares = [
            float((trained == label).float().mean()) * float(right[data.test.targets[own.test] == label].float().mean())
            for label in held
        ]
        assert float(score.figures["accuracy_weighted"][agent]) == pytest.approx(sum(shares))
        assert not set(data.test.targets[own.test].tolist()) - set(held.tolist())


def test_a_config_that_says_nothing_takes_what_the_algorithm_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({})
    assert config.readout_for("classification") == "all"
    assert "readout" not in config.table()  # hashes of configs from before stay
    monkeypatch.setattr(algorithms["mce-pl"].make, "readout", "own", raising=False)
    assert config.readout_for("classification") == "own"
    assert make_config({"readout": "all"}).readout_for("classification") == "all"
    arms = make_config({"readout": "all", "compare": ["ind-mask"]}).arms()
    assert [arm.readout_for("classification") for arm in arms.values()] == ["all", "all"]


def test_the_config_is_read_back_as_it_was(small: Small, tmp_path: Path) -> None:
    result = run_experiment(small(readout="own"), tmp_path / "run")
    assert load_config(tmp_path / "run" / "config.toml").readout == "own"
    assert (result.readout, result.manifest["readout"]) == ("own", "own")


def test_one_pass_measures_both_and_the_config_says_which_counts(small: Small, tmp_path: Path) -> None:
    """DSGD's consensus answers labels that an agent does not have; training is the same whatever the readout."""
    results = {
        readout: run_experiment(small(algorithm="dsgd", rounds=10, readout=readout), tmp_path / readout)
        for readout in ("all", "own")
    }
    assert results["all"].hash == results["own"].hash
    tables = {name: pd.read_csv(tmp_path / name / "metrics.csv") for name in results}
    for split in ("test", "validation"):
        for counted in ("all", "own"):
            column = f"{split}_accuracy_{counted}"
            assert (tables["all"][column] == tables["own"][column]).all()
            assert (tables[counted][f"{split}_accuracy"] == tables[counted][column]).all()
    assert results["own"].mean_accuracy > results["all"].mean_accuracy
    for name, result in results.items():
        done = read_json(tmp_path / name / "result.json")
        assert done["readout"] == name
        assert done["test_accuracy"] == done[f"test_accuracy_{name}"] == pytest.approx(result.mean_accuracy)
        assert done["test_accuracy_weighted"] == pytest.approx(result.mean("test_accuracy_weighted"))


def test_models_answer_as_the_run_said(small: Small, tmp_path: Path) -> None:
    config = small(algorithm="dsgd", rounds=10, readout="own")
    run_experiment(config, tmp_path / "run")
    result = RunResult.open(tmp_path / "run")
    experiment = build(config)
    data = experiment.dataset
    for agent, model in enumerate(result.local_models()):
        own = experiment.samples[agent]
        logits = model(data.test.inputs[own.test])
        right = (logits.argmax(1) == data.test.targets[own.test]).float().mean()
        assert float(right) == pytest.approx(result.agents[agent].test_accuracy_last, abs=1e-6)
        chances = logits.softmax(1)
        assert bool((chances[:, [c for c in range(10) if c not in own.labels]] == 0).all())
        assert torch.allclose(chances.sum(1), torch.ones(len(chances)))


def test_the_closing_table_shows_both_where_they_differ(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run_experiment(small(algorithm="dsgd", rounds=10, partition="dirichlet"), tmp_path / "alone")
    assert [column.header for column in agents_table(alone).columns][5:7] == ["own\nlabels", "weighted"]
    assert closing_lines(alone)[0].startswith(
        f"dsgd: answers among all labels {100 * alone.mean_accuracy:.1f} %, own labels "
    )
    compared = run_experiment(small(rounds=2, compare=["dsgd"]), tmp_path / "compared")
    assert [line.split(":")[0] for line in closing_lines(compared)[:2]] == ["mce-pl", "dsgd"]
    monkeypatch.setattr(type(compared), "mean", lambda run, _name: 0.5 if run is compared else 0.50001)
    assert any("dsgd: +0.0 points" in line for line in closing_lines(compared))  # not -0.0


@pytest.mark.parametrize("first", ["dsgd", "ind-mask"])
def test_a_comparison_says_where_collaboration_lost(small: Small, tmp_path: Path, first: str) -> None:
    """DSGD with a step far too small against masks that learn: whichever comes first."""
    arms = {"dsgd": {"name": "dsgd", "lr": 1e-9}, "ind-mask": {"name": "ind-mask", "lr": 0.3}}
    chosen = arms.pop(first)
    run = run_experiment(small(algorithm=chosen, compare=list(arms.values()), rounds=20), tmp_path / "run")
    (told,) = (line for line in closing_lines(run) if line.startswith("collaboration lost here"))
    assert told.startswith("collaboration lost here: dsgd is behind ind-mask, which sends nothing; try accord")
    won = run_experiment(small(algorithm="dsgd", compare=["fl"], rounds=2), tmp_path / "won")
    assert not any("lost" in line for line in closing_lines(won))


def test_arms_with_different_readouts_are_compared_by_either(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms["mce-pl"].make, "readout", "own", raising=False)
    run = run_experiment(small(rounds=2, compare=["dsgd"]), tmp_path / "run")
    other = run.compared[0]
    gains = [100 * (run.mean(name) - other.mean(name)) for name in ("test_accuracy_all", "test_accuracy_own")]
    assert (
        f"both with answers among all labels: {gains[0]:+z.1f} points; both among own: {gains[1]:+z.1f}"
        in closing_lines(run)
    )


def test_a_manifest_with_labels_that_are_not_there_is_damaged(small: Small, tmp_path: Path) -> None:
    run_experiment(small(rounds=1), tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    manifest = read_json(path)
    manifest["agents"][1]["labels"] = [3, 10]
    write_json(path, manifest)
    with pytest.raises(RunError, match=r"manifest\.json is damaged \(agents\.labels: not of labels 0 to 9\)"):
        RunResult.open(tmp_path / "run")
    write_json(path, {**manifest, "readout": "mine"})
    with pytest.raises(RunError, match=r"manifest\.json is damaged \(readout"):
        RunResult.open(tmp_path / "run")
