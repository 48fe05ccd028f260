"""EfficientNet-Lite0: TensorFlow's padding, the names of its weights, and many agents as each alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import peermask
from peermask.compute.network import Batch, build_network
from peermask.errors import ModelError
from peermask.models.architectures import STAGES, EfficientNetLite, efficientnet_lite0, padding
from peermask.models.pretrained import fold_batch_norms

SHAPE = (3, 32, 32)


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "wanted"),
    [
        (32, 3, 1, (1, 1)),
        (32, 5, 1, (2, 2)),
        (32, 3, 2, (0, 1)),
        (33, 3, 2, (1, 1)),
        (32, 5, 2, (1, 2)),
        (1, 5, 2, (2, 2)),
    ],
)
def test_padding_is_tensorflows(side: int, kernel: int, stride: int, wanted: tuple[int, int]) -> None:
    """Outputs ceil(32 / 2) = 16 need (16 - 1) · 2 + 3 = 33 inputs: one more, which comes after."""
    assert padding(side, kernel, stride) == wanted
    padded = torch.nn.functional.pad(torch.zeros(1, 1, side), wanted)
    assert torch.nn.functional.conv1d(padded, torch.zeros(1, 1, kernel), stride=stride).shape[-1] == -(-side // stride)


def trained() -> EfficientNetLite:
    """With norms that do something."""
    torch.manual_seed(0)
    net = efficientnet_lite0(SHAPE, 10)
    assert isinstance(net, EfficientNetLite)
    for child in net.modules():
        if isinstance(child, nn.BatchNorm2d):
            nn.init.uniform_(child.weight, 0.5, 1.5)
            nn.init.uniform_(child.running_var, 0.5, 1.5)
            nn.init.uniform_(child.running_mean, -0.1, 0.1)
    return net.eval()


def test_its_parameters_are_named_as_in_the_package() -> None:
    names = {name for name in trained().state_dict() if "num_batches" not in name}
    norm = ("weight", "bias", "running_mean", "running_var")
    wanted = {"_conv_stem.weight", "_conv_head.weight", "_fc.weight", "_fc.bias"}
    wanted |= {f"{which}.{part}" for which in ("_bn0", "_bn1") for part in norm}
    for place in range(sum(count for count, *_ in STAGES)):
        layers = ["depthwise_conv", "project_conv"] + ["expand_conv"] * (place > 0)
        wanted |= {f"_blocks.{place}._{layer}.weight" for layer in layers}
        wanted |= {f"_blocks.{place}._bn{which}.{part}" for which in range(place == 0, 3) for part in norm}
    assert names == wanted
    assert sum(p.numel() for p in efficientnet_lite0(SHAPE, 1000).parameters()) == 4_652_008  # as published: 4.7 M


def test_all_norms_fold_and_images_are_scaled_first() -> None:
    net = trained()
    folded = copy.deepcopy(net)
    assert fold_batch_norms(folded) == {"folded": 49, "alone": 0}
    x = torch.randn(2, *SHAPE)
    torch.testing.assert_close(folded(x), net(x), atol=1e-4, rtol=1e-4)
    large = efficientnet_lite0(SHAPE, 10, side=64)
    large.load_state_dict(net.state_dict())
    scaled = nn.functional.interpolate(x, (64, 64), mode="bilinear")
    assert large.eval()(x).shape == (2, 10)
    as_is = efficientnet_lite0((3, 64, 64), 10)
    as_is.load_state_dict(net.state_dict())
    torch.testing.assert_close(large(x), as_is.eval()(scaled))


def test_many_agents_compute_as_each_alone() -> None:
    """Depthwise convolutions become one over the channels of all agents, 1x1 ones a batched product."""
    net = trained()
    fold_batch_norms(net)
    network = build_network(net, SHAPE, 10)
    torch.manual_seed(1)
    own = torch.cat([dict(net.named_parameters())[layer.name].detach().flatten() for layer in network.layout.layers])
    params = own + 0.01 * torch.randn(3, len(own))
    batch = Batch(torch.randn(3, 4, *SHAPE), torch.randint(10, (3, 4)))
    gradients, losses = network.gradient(params, batch)
    for agent in range(3):
        alone, loss = network.gradient(params[agent : agent + 1], batch.row(agent))
        torch.testing.assert_close(losses[agent : agent + 1], loss, atol=1e-4, rtol=1e-4)
        error = (gradients[agent] - alone[0]).norm() / alone.norm()
        assert error < 1e-4
    outputs = network.outputs(params, batch.inputs)
    torch.testing.assert_close(outputs[1:2], network.outputs(params[1:2], batch.inputs[1:2]), atol=1e-4, rtol=1e-4)


def test_images_it_cannot_take(tmp_path: object) -> None:
    config = peermask.make_config({"model": {"name": "efficientnet-lite0"}, "retention": 0.5})
    with pytest.raises(ModelError, match="it takes images of 3 channels"):
        peermask.run_experiment(config, f"{tmp_path}/run")
    with pytest.raises(ValueError, match=r"set model\.side to 32 or more"):
        efficientnet_lite0((3, 16, 16), 10)
