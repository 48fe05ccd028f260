"""Every parameter is accounted for: recurrent layers, embeddings, attention and convolutions of any dimension."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from peermask.compute.network import Batch, build_network, mean_loss
from peermask.errors import ModelError
from peermask.models.frozen import frozen_weights
from peermask.models.layout import find_layout
from peermask.models.outputs import cross_entropy, squared_error


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.cell = cell(4, 5, num_layers=2, batch_first=True, bidirectional=True)  # type: ignore[call-arg, arg-type]
        self.head = nn.Linear(10, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.cell(self.embedding(tokens))
        return self.head(states[:, -1])  # type: ignore[no-any-return]


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.place = nn.Parameter(torch.zeros(6, 4))
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens) + self.place).mean(1))  # type: ignore[no-any-return]


class Volume(nn.Module):
    def __init__(self, dimensions: int) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        self.conv = conv(2, 4, 3, padding=1, groups=2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).tanh().flatten(2).mean(2))  # type: ignore[no-any-return]


CASES = [
    (Recurrent(nn.LSTM), (6,), True),
    (Recurrent(nn.GRU), (6,), True),
    (Attentive(), (6,), True),
    (Volume(1), (2, 6), False),
    (Volume(2), (2, 6, 5), False),
    (Volume(3), (2, 4, 3, 5), False),
]


@pytest.mark.parametrize(("module", "shape", "tokens"), CASES)
@pytest.mark.parametrize("uneven", [False, True])
def test_gradients_are_those_of_the_module_itself(
    module: nn.Module, shape: tuple[int, ...], tokens: bool, uneven: bool
) -> None:
    network = build_network(copy.deepcopy(module), shape, 3, tokens=tokens)
    draw = torch.Generator().manual_seed(1)
    params = 0.5 * torch.randn(3, network.layout.total, generator=draw)
    inputs = (
        torch.randint(0, 11, (3, 7, *shape), generator=draw) if tokens else torch.randn(3, 7, *shape, generator=draw)
    )
    targets = torch.randint(0, 3, (3, 7), generator=draw)
    valid = torch.ones(3, 7)
    valid[1, 4:] = 0
    batch = Batch(inputs, targets, valid if uneven else None)
    gradients, losses = network.gradient(params, batch)
    outputs = network.outputs(params, inputs)
    for agent in range(3):
        own = copy.deepcopy(module).eval().requires_grad_(True)
        own.load_state_dict(network.layout.unflatten(params[agent]), strict=False)
        told = own(inputs[agent])
        loss = mean_loss(cross_entropy, told, targets[agent], valid[agent] if uneven else None)
        loss.backward()
        torch.testing.assert_close(outputs[agent], told.detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(losses[agent], loss.detach(), atol=1e-5, rtol=1e-4)
        found = network.layout.unflatten(gradients[agent])
        for name, parameter in own.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3)
        alone, _ = network.gradient(params[agent : agent + 1], batch.row(agent))
        torch.testing.assert_close(alone[0], gradients[agent], atol=1e-6, rtol=1e-4)


def test_a_stack_of_linear_layers_takes_features_and_any_loss() -> None:
    network = build_network(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), (4,), 2, loss=squared_error
    )
    assert network.stack is not None
    draw = torch.Generator().manual_seed(1)
    params = torch.randn(2, network.layout.total, generator=draw)
    batch = Batch(torch.randn(2, 5, 4, generator=draw), torch.randn(2, 5, 2, generator=draw))
    stacked, losses = network.gradient(params, batch)
    for agent in range(2):
        alone, loss = network.gradient(params[agent : agent + 1], batch.row(agent))
        torch.testing.assert_close(alone[0], stacked[agent], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(loss[0], losses[agent])


def test_every_parameter_is_listed_once_by_what_becomes_of_it() -> None:
    module = Attentive()
    layout = find_layout(module, ["embedding.*", "layer.*"])
    account = layout.account
    assert {fate: [layer.name for layer in layers] for fate, layers in account.items()} == {
        "masked, embedding": ["embedding.weight"],
        "masked, linear": [
            "layer.self_attn.in_proj_weight",
            "layer.self_attn.out_proj.weight",
            "layer.linear1.weight",
            "layer.linear2.weight",
        ],
        "not masked, other": ["place"],
        "not masked, bias": [
            "layer.self_attn.in_proj_bias",
            "layer.self_attn.out_proj.bias",
            "layer.linear1.bias",
            "layer.linear2.bias",
            "head.bias",
        ],
        "not masked, norm": ["layer.norm1.weight", "layer.norm1.bias", "layer.norm2.weight", "layer.norm2.bias"],
        "not masked, by mask.layers": ["head.weight"],
    }
    counted = sum(layer.size for layers in account.values() for layer in layers)
    assert counted == layout.total == sum(parameter.numel() for parameter in module.parameters())


def test_recurrent_weights_are_drawn_by_their_inputs() -> None:
    layout = find_layout(nn.LSTM(4, 5))
    fans = {layer.name: (layer.kind, layer.fan_in) for layer in layout.layers}
    assert fans["weight_ih_l0"] == ("recurrent", 4)
    assert fans["weight_hh_l0"] == ("recurrent", 5)
    assert fans["bias_ih_l0"] == ("bias", 5)
    views = layout.unflatten(frozen_weights(layout, "signed-constant", "zero", 0).values)
    assert views["weight_ih_l0"].abs().unique().tolist() == pytest.approx([(2 / 4) ** 0.5])


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Pair(), "'one.weight' and 'two.weight' are one tensor"),
        (Tuple(), "gives a tuple, not a tensor"),
        (nn.Sequential(nn.LazyLinear(3)), "'0.weight' has no shape yet"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5), "has a dropout of 0.5"),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "is a batch norm"),
        (nn.Sequential(nn.Linear(4, 3)), "does not fit inputs of shape 3"),
        (nn.Sequential(nn.Linear(3, 2)), "gives 2 outputs for an input; the data has 3 classes"),
    ],
)
def test_modules_that_cannot_be_used_are_one_line(module: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build_network(module, (3,), 3)
    assert "\n" not in str(caught.value)
