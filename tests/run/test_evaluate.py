"""Accuracy over an agent's own samples, whatever the size of its set, by either readout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peermask.compute.network import build_network
from peermask.config.file import make_config
from peermask.data.arrays import from_arrays
from peermask.models.architectures import mlp
from peermask.models.outputs import Readout
from peermask.run.assemble import assemble
from peermask.run.build import build
from peermask.run.metrics import AT_ONCE_ON_CPU, evaluate, weighted

COUNTS = torch.tensor([[4.0, 0.0, 1.0], [0.0, 2.0, 0.0], [1.0, 1.0, 1.0]])  # training samples of each label


@pytest.mark.parametrize("readout", ["all", "own"])
def test_each_agent_is_scored_on_its_own_samples(readout: Readout) -> None:
    """Against each sample by itself: its largest logit, and its largest among the labels that have a count."""
    rng = np.random.default_rng(0)
    count = AT_ONCE_ON_CPU + 5  # two passes, the second of which is not full
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
    assert weighted(right, samples, counts).tolist() == pytest.approx([0.5, 7 / 8, 5 / 6])


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
