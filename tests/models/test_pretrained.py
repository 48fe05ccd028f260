"""Given weights: read without trust, named where they differ, batch norms folded to the same function."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from peermask.errors import ModelError
from peermask.models.layout import ChannelAffine
from peermask.models.pretrained import fold_batch_norms, put_weights, read_weights, without_batch_norm


class Normed(nn.Module):
    """A norm after a convolution, one before it, one after a linear layer, and one whose input is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.BatchNorm2d(2)
        self.conv = nn.Conv2d(2, 3, 3, bias=False)
        self.after = nn.BatchNorm2d(3)
        self.twice = nn.Conv2d(3, 3, 1)
        self.side = nn.BatchNorm2d(3, affine=False)
        self.head = nn.Linear(3, 4)
        self.last = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.after(self.conv(self.before(x))).relu())
        return self.last(self.head((x + self.side(x)).mean((2, 3))))  # type: ignore[no-any-return]


def trained() -> Normed:
    torch.manual_seed(0)
    module = Normed()
    for _ in range(3):
        module(torch.randn(16, 2, 6, 6) * 3 + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def test_folded_norms_are_the_same_function() -> None:
    module = trained()
    folded = copy.deepcopy(module)
    assert fold_batch_norms(folded) == {"folded": 2, "alone": 2}
    assert isinstance(folded.after, nn.Identity)
    assert isinstance(folded.before, ChannelAffine)
    x = torch.randn(5, 2, 6, 6)
    torch.testing.assert_close(folded(x), module(x), atol=1e-5, rtol=1e-4)
    assert not any(isinstance(child, nn.modules.batchnorm._BatchNorm) for child in folded.modules())


def test_one_norm_by_hand() -> None:
    norm = nn.BatchNorm1d(1, eps=0.0)
    norm.running_mean, norm.running_var = torch.tensor([3.0]), torch.tensor([4.0])
    with torch.no_grad():
        norm.weight.fill_(6.0)
        norm.bias.fill_(1.0)
    module = nn.Sequential(nn.Linear(1, 1), norm)
    with torch.no_grad():
        module[0].weight.fill_(2.0)  # type: ignore[operator, union-attr]
        module[0].bias.fill_(5.0)  # type: ignore[operator, union-attr]
    fold_batch_norms(module)
    # (2 x + 5 - 3) / 2 * 6 + 1 = 6 x + 7
    assert module(torch.tensor([[1.0]])).item() == 13.0
    assert module[0].weight.item() == 6.0  # type: ignore[operator, union-attr]


def test_a_module_that_cannot_be_traced_keeps_factors() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x)) if x.sum() > 0 else self.conv(x)  # type: ignore[no-any-return]

    module = Branching().eval()
    x = torch.ones(2, 1, 3)
    wanted = module(x)
    assert fold_batch_norms(module) == {"folded": 0, "alone": 1}
    torch.testing.assert_close(module(x), wanted)


def test_group_norms_replace_batch_norms_in_a_copy() -> None:
    module = trained()
    norms = {n: c for n, c in without_batch_norm(module).named_modules() if isinstance(c, nn.GroupNorm)}
    # two, three and four channels: one group each
    assert {name: norm.num_groups for name, norm in norms.items()} == dict.fromkeys(
        ["before", "after", "side", "last"], 1
    )
    assert torch.equal(norms["after"].weight, module.after.weight)
    assert not norms["side"].affine
    assert isinstance(module.after, nn.BatchNorm2d)
    for channels, groups in ((64, 8), (16, 4), (8, 2), (36, 4), (7, 1)):
        replaced = without_batch_norm(nn.BatchNorm1d(channels))
        assert isinstance(replaced, nn.GroupNorm)
        assert replaced.num_groups == groups
    with pytest.raises(ModelError, match=r"model parameter '1.weight' has no shape yet"):
        without_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d()))
    with pytest.raises(ModelError, match="module has type str; give"):
        without_batch_norm("net")  # type: ignore[arg-type]


def test_files_are_read_and_others_refused(tmp_path: Path) -> None:
    weights = nn.Linear(3, 2).state_dict()
    safetensors.torch.save_file(weights, tmp_path / "a.safetensors")
    torch.save(weights, tmp_path / "a.pt")
    torch.save({"epoch": 3, "state_dict": weights}, tmp_path / "b.pt")
    for name in ("a.safetensors", "a.pt", "b.pt"):
        read = read_weights(tmp_path / name)
        assert all(torch.equal(read[key], weights[key]) for key in weights)
    torch.save(nn.Linear(3, 2), tmp_path / "module.pt")  # would run code
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    for name, message in (
        ("module.pt", "state dict of tensors alone"),
        ("list.pt", "holds a list, not tensors by name"),
        ("bad.safetensors", "is damaged"),
        ("none.pt", "there is no such file"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            read_weights(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_the_first_difference_is_named() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))
    weights = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4)).state_dict()
    put_weights(module, weights, "w.pt")
    assert all(torch.equal(module.state_dict()[name], weights[name]) for name in weights)
    other = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 5)).state_dict()
    with pytest.raises(ModelError, match=r"w.pt has '1.weight' of 5x2, the model of 4x2"):
        put_weights(module, other, "w.pt")
    put_weights(module, other, "w.pt", ["1.*"])  # whose head is drawn anew
    with pytest.raises(ModelError, match=r"w.pt has no '0.bias' of 2, which the model has"):
        put_weights(module, {"0.weight": weights["0.weight"]}, "w.pt")
    with pytest.raises(ModelError, match=r"w.pt has 'more' of 1, which the model does not have"):
        put_weights(module, {**weights, "more": torch.zeros(1)}, "w.pt")
    with pytest.raises(ModelError, match=r"'0.weight' as torch.int64; floats are needed"):
        put_weights(module, {**weights, "0.weight": torch.zeros(2, 3, dtype=torch.int64)}, "w.pt")
