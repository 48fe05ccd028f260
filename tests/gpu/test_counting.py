"""Batches and bytes on a GPU against the same on a CPU, where there is a GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.data.batches import Augmentation
from peermask.data.dataset import gather_triton
from peermask.graph.links import Links
from peermask.run.assemble import assemble
from peermask.run.build import build
from peermask.run.ledger import LinkHistories
from peermask.run.metrics import evaluate
from peermask.wire.cost import Cost, message_cost
from peermask.wire.receiver_state import restore_receiver_state
from peermask.wire.schema import Payload, Schema

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ALEXNET = (4800, 204800, 819200, 196608, 1920)


def on_gpu(payload: Payload) -> Payload:
    return {name: leaf.cuda() for name, leaf in payload.items()}


def counted_alike(payload: Payload, base: Payload | None, sizes: tuple[int, ...]) -> None:
    here_known, there_known = None, None
    if base is not None:
        _, here_known = message_cost(base, None, sizes)
        _, there_known = message_cost(on_gpu(base), None, sizes)
    here, _ = message_cost(payload, here_known, sizes)  # by the codec's own plan
    there, _ = message_cost(on_gpu(payload), there_known, sizes)
    equal_costs(here, there)


def equal_costs(here: Cost, there: Cost) -> None:
    for name in ("paper_bits", "ones_bits", "bitmap_bytes", "coded_bytes", "kind"):
        assert getattr(there, name).tolist() == getattr(here, name).tolist(), name
    assert there.entropy_bytes.tolist() == pytest.approx(here.entropy_bytes.tolist(), rel=1e-12)


@pytest.mark.parametrize("sizes", [ALEXNET, (1, 4096, 4097, 37), (9,)])
def test_a_whole_history_takes_the_codecs_bytes(sizes: tuple[int, ...]) -> None:
    """Fifteen messages of three agents, a tenth of whose weights flips far more often; a resume in the middle."""
    generator = torch.Generator().manual_seed(0)
    hot = torch.rand(3, sum(sizes), generator=generator) < 0.1
    mask = torch.rand(3, sum(sizes), generator=generator) < 0.3
    here_known, there_known = None, None
    for number in range(15):
        here, here_known = message_cost({"mask": mask}, here_known, sizes)
        there, there_known = message_cost(on_gpu({"mask": mask}), there_known, sizes)
        equal_costs(here, there)
        if number == 7:
            saved = {name: tensor.cpu() for name, tensor in there_known.tensors().items()}
            assert all(torch.equal(saved[name], tensor) for name, tensor in here_known.tensors().items())
            there_known = restore_receiver_state(saved, Schema.of_rows({"mask": mask}, sizes), torch.device("cuda"))
        rates = torch.where(hot, 0.4, 0.001 if number % 5 else 0.3)
        mask = mask ^ (torch.rand(mask.shape, generator=generator) < rates)


def test_values_in_half_precision_are_counted_on_the_cpu() -> None:
    values = torch.linspace(-2, 2, 30).half().view(3, 10)
    counted_alike({"weights": values}, {"weights": -values}, (10,))
    cost, known = message_cost(on_gpu({"weights": values}), None, (10,))
    assert {getattr(cost, each.name).device.type for each in fields(cost)} == {"cpu"}  # a table is one stack of them
    restore_receiver_state(known.tensors(), Schema.of_rows({"weights": values}, (10,)), torch.device("cuda"))


@pytest.mark.parametrize("values", [False, True])
def test_links_that_change_take_the_codecs_bytes(values: bool) -> None:
    """Eight rounds of half of all pairs, so that histories are of all lengths; a resume in the middle."""
    generator = torch.Generator().manual_seed(0)
    agents, drawn_links = 6, np.random.default_rng(0)
    mask = torch.rand(agents, sum(ALEXNET), generator=generator) < 0.3
    plain, fast = LinkHistories(remembered=3), LinkHistories(remembered=3)
    for number in range(8):
        payload = {"mask": mask, **({"weights": mask * 1.5} if values else {})}
        linked = drawn_links.random((agents, agents)) < 0.5
        receivers, senders = np.nonzero(linked & ~np.eye(agents, dtype=bool))
        links = Links.between(receivers, senders, agents)
        here, there = plain.cost(payload, links, ALEXNET), fast.cost(on_gpu(payload), links, ALEXNET)
        assert there.coded_bytes.device.type == "cuda"
        equal_costs(here, there)
        if number == 4:
            saved = {name: tensor.cpu() for name, tensor in fast.tensors().items()}
            assert all(torch.equal(saved[name], tensor) for name, tensor in plain.tensors().items())
            fast = LinkHistories(remembered=3)
            fast.restore(saved, on_gpu(payload), ALEXNET)
        mask = mask ^ (torch.rand(mask.shape, generator=generator) < (0.01 if number % 3 else 0.2))


@pytest.mark.parametrize("flips", [None, 0.0, 0.003, 0.4])
@pytest.mark.parametrize("sizes", [ALEXNET, (1, 4096, 4097, 37), (9,)])
def test_masks_take_the_codecs_bytes(sizes: tuple[int, ...], flips: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    densities = torch.tensor([[0.0], [0.0005], [0.3], [0.5], [0.97], [1.0]])
    mask = torch.rand(6, sum(sizes), generator=generator) < densities
    base = None if flips is None else {"mask": mask ^ (torch.rand(mask.shape, generator=generator) < flips)}
    counted_alike({"mask": mask}, base, sizes)


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("on_mask", [False, True])
def test_values_take_the_codecs_bytes(with_base: bool, on_mask: bool) -> None:
    sizes = (300, 20_000, 37)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(4, sum(sizes), generator=generator) < torch.tensor([[0.05], [0.3], [0.5], [0.95]])
    support = torch.rand(mask.shape, generator=generator) < 0.6
    values = torch.randn(mask.shape, generator=generator) * (mask if on_mask else support)  # -0.0 among them
    payload = {"mask": mask, "support": support, "weights": values, "rest": torch.randn(4, 202, generator=generator)}
    before = mask ^ (torch.rand(mask.shape, generator=generator) < 0.01)
    base = {**payload, "mask": before, "weights": values * before}
    counted_alike(payload, base if with_base else None, sizes)


def test_rows_further_apart_than_32_bits_count() -> None:
    agents, size = 2_200, 1_000_000
    mask = torch.zeros(agents, size, dtype=torch.bool, device="cuda")
    mask[-1] = torch.rand(size, generator=torch.Generator("cuda").manual_seed(0), device="cuda") < 0.1
    sizes = (300_000, 700_000)
    known, known_alone = None, None
    for _ in range(2):
        whole, known = message_cost({"mask": mask}, known, sizes)
        alone, known_alone = message_cost({"mask": mask[-1:]}, known_alone, sizes)
        assert int(whole.coded_bytes[-1]) == int(alone.coded_bytes[0])
        assert int(whole.ones_bits[-1]) == int(mask[-1].sum())


def test_more_pixels_than_32_bits_count() -> None:
    count = 2**31 // 3072 + 5
    if torch.cuda.mem_get_info()[0] < 5 * 2**31:
        pytest.skip("needs 10 GB of GPU memory")
    images = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8, device="cuda")
    index = torch.arange(count, device="cuda").remainder(7).view(1, -1)
    labels = torch.arange(7, device="cuda")
    gathered, picked = gather_triton(images, labels, index, 255.0)
    tail, _ = gather_triton(images, labels, index[:, -9:], 255.0)
    assert torch.equal(gathered[:, -9:], tail)
    assert torch.equal(picked, index)


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("batch_size", [16, 500])
def test_a_feed_gives_what_it_gives_on_a_cpu(batch_size: int, augmented: bool) -> None:
    """With batches larger than what an agent holds, too."""
    config = make_config({"agents": 5, "rounds": 3, "batch_size": batch_size, "data": {"fraction": 0.3}})
    experiment = build(config)

    def batch(device: str) -> tuple[Tensor, Tensor, Tensor | None]:
        feed = assemble(experiment, torch.device(device))[1]
        if augmented:
            feed = replace(feed, augmentation=Augmentation(flip=True, crop=1))
        made = feed.batch(Clock(2, 3), step=1)
        return made.inputs.cpu(), made.targets.cpu(), None if made.valid is None else made.valid.cpu()

    for here, there in zip(batch("cpu"), batch("cuda"), strict=True):
        assert (here is None) == (there is None)
        if here is not None:
            assert there is not None
            assert torch.equal(here, there)


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_models_see_the_same_images_by_either_path(model: str) -> None:
    """Channels lie last in memory: neither the fused nor the general path may care."""
    experiment = build(make_config({"agents": 3, "rounds": 3, "model": model}))
    feed = assemble(experiment, torch.device("cuda"))[1]
    torch.manual_seed(0)
    params = 0.05 * torch.randn(3, feed.network.layout.total, device="cuda")
    batch = feed.batch(Clock(1, 3))
    plain = replace(batch, inputs=batch.inputs.contiguous())
    for network in (feed.network, replace(feed.network, stack=None)):
        for one, other in zip(network.gradient(params, batch), network.gradient(params, plain), strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)
    indices = [own.test for own in feed.samples]
    fused, general = (
        evaluate(network, params, feed.dataset, feed.dataset.test, indices, torch.ones(3, 10, device="cuda"))
        for network in (feed.network, replace(feed.network, stack=None))
    )
    assert torch.allclose(fused.loss, general.loss, rtol=1e-2)


def test_readouts_are_measured_as_on_a_cpu() -> None:
    """An image or two may stand on the edge between two labels."""
    experiment = build(make_config({"agents": 3, "rounds": 3, "partition": "dirichlet", "readout": "own"}))
    params = 0.05 * torch.randn(3, experiment.network.layout.total, generator=torch.Generator().manual_seed(0))
    here, there = (
        assemble(experiment, torch.device(device))[1].test(params.to(device)).figures.values()
        for device in ("cpu", "cuda")
    )
    for one, other in zip(here, there, strict=True):
        assert torch.allclose(one, other.cpu(), atol=0.02)
