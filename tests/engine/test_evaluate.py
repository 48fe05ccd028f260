"""Accuracy over an agent's own samples, whatever the size of its set."""

from __future__ import annotations

import numpy as np
import torch

from peermask.data.arrays import from_arrays
from peermask.engine import evaluate as module
from peermask.engine.evaluate import evaluate
from peermask.models.architectures import mlp
from peermask.models.network import build_network


def test_each_agent_is_scored_on_its_own_samples(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "AT_ONCE_ON_CPU", 3)
    rng = np.random.default_rng(0)
    images, labels = rng.random((12, 1, 4, 4), dtype=np.float32), rng.integers(0, 3, 12)
    dataset = from_arrays(images, labels, images, labels, classes=("a", "b", "c"))
    network = build_network(mlp(dataset.shape, 3, hidden=(5,)), dataset.shape, 3)
    params = torch.randn(3, network.layout.total, generator=torch.Generator().manual_seed(0))
    indices = [np.arange(7), np.array([3, 1]), np.array([], dtype=np.int64)]
    score = evaluate(network, params, dataset, dataset.test, indices, torch.ones(3, 3))
    for agent, own in enumerate(indices[:2]):
        logits = network.logits(params[agent : agent + 1], dataset.normalise(dataset.test.images[own])[None])[0]
        expected = (logits.argmax(1) == dataset.test.labels[own]).float().mean()
        assert torch.allclose(score.accuracy[agent], expected)
    assert bool(score.accuracy[2].isnan())
