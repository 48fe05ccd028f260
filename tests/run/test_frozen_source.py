"""Weights that are given: kept bit for bit, never silently replaced, and compared by their checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import peermask
from peermask.errors import ExportError, RunError
from peermask.run.assemble import build_simulator, openings
from peermask.run.build import build

ALL: dict[str, Any] = {"retention": 1.0, "mask": {"fc_keep": "r"}, "model": {"name": "mlp", "hidden": [12]}}


def values(**changes: Any) -> dict[str, Any]:
    return {"agents": 3, "rounds": 3, "graph": {"name": "ring"}, "data": {"fraction": 0.1}, **ALL, **changes}


def trained() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def raw() -> Tensor:
    return torch.randint(0, 17, (5, 1, 8, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


@pytest.mark.parametrize("how", ["safetensors", "pt", "module"])
def test_with_full_retention_they_are_kept_bit_for_bit(how: str, tmp_path: Path) -> None:
    module = trained()
    path = tmp_path / f"weights.{how}"
    if how == "safetensors":
        safetensors.torch.save_file(module.state_dict(), path)
    elif how == "pt":
        torch.save(module.state_dict(), path)
    source = "module" if how == "module" else str(path)
    given = module if how == "module" else None
    result = peermask.run_experiment(values(frozen={"from": source}), tmp_path / "run", module=given)
    wanted = module.state_dict()
    for model in result.local_models():
        kept = model.get_submodule("network").state_dict()
        assert all(torch.equal(kept[name], wanted[name]) for name in wanted)
    seen = build(result.config, None, given).dataset.normalise(raw())
    assert torch.equal(result.local_models()[0](raw()), module(seen))
    peermask.export(result, 0, tmp_path / "a.ticket")
    weights = None if how == "module" else path
    loaded = peermask.load_ticket(tmp_path / "a.ticket", module=given, weights=weights)
    assert torch.equal(loaded(raw()), module(seen))
    if how != "module":
        with pytest.raises(ExportError, match=r"is a mask over the weights of .*; give that file"):
            peermask.load_ticket(tmp_path / "a.ticket")
        longer = peermask.resume_experiment(tmp_path / "run", overrides=["rounds=4"])
        assert longer.round == 4
        other = {name: tensor + 1 for name, tensor in wanted.items()}
        safetensors.torch.save_file(other, tmp_path / "other.safetensors")
        with pytest.raises(ExportError, match=r"was made with frozen weights .*, here those given are"):
            peermask.load_ticket(tmp_path / "a.ticket", weights=tmp_path / "other.safetensors")


def test_small_retentions_of_given_weights_are_noted() -> None:
    few = values(retention={"choices": [0.9, 0.1]}, frozen={"from": "module"})
    line = build(peermask.make_config(few), None, trained()).notes[-1]
    assert line.startswith("retention 0.1 removes most of the given weights, and what they have learned; 0.9 with")
    most = peermask.make_config(values(retention=0.9, frozen={"from": "module"}))
    assert len(build(most, None, trained()).notes) == 1  # what is masked and kept


def test_other_weights_under_the_same_name_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(trained().state_dict(), path)
    peermask.run_experiment(values(frozen={"from": str(path)}), tmp_path / "run")
    safetensors.torch.save_file({k: v + 1 for k, v in trained().state_dict().items()}, path)
    with pytest.raises(RunError, match="was run with frozen weights"):
        peermask.resume_experiment(tmp_path / "run", overrides=["rounds=5"])


@pytest.mark.parametrize("algorithm", ["mce-pl", "ind-mask", "accord"])
def test_scores_begin_as_the_magnitudes(algorithm: str) -> None:
    module = trained()
    config = peermask.make_config(
        values(retention=0.3, frozen={"from": "module", "drawn": ["3.*"]}, algorithm=algorithm)
    )
    experiment = build(config, None, module)
    state = build_simulator(experiment, torch.device("cpu")).states[1]
    assert torch.equal(state.scores[0, : 12 * 64], module[1].weight.abs().flatten())  # type: ignore[operator, union-attr]
    mask = state.mask[0, : 12 * 64]
    magnitudes = state.scores[0, : 12 * 64]
    assert float(magnitudes[mask].min()) >= float(magnitudes[~mask].max())
    drawn = build(peermask.make_config(values(algorithm=algorithm)), None, module).frozen.values
    assert torch.equal(experiment.frozen.values[12 * 64 :][: 12 * 10], drawn[12 * 64 :][: 12 * 10])


def test_a_first_message_says_what_differs_from_the_largest_weights() -> None:
    config = peermask.make_config(values(retention=0.3, frozen={"from": "module"}, algorithm="accord"))
    experiment = build(config, None, trained())
    first = build_simulator(experiment, torch.device("cpu")).states
    opened = openings(experiment, experiment.agents)["mask"]
    for agent in range(3):
        assert torch.equal(opened[agent], first[agent].mask[0])


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu()).flatten(1))  # type: ignore[no-any-return]


def test_batch_norms_and_dropout_of_a_trained_module(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    module = Normed()
    module(torch.randn(32, 1, 8, 8) * 2)
    module.eval()
    config = values(frozen={"from": "module", "init": "uniform-pm1"})
    result = peermask.run_experiment(config, tmp_path / "run", module=module)
    assert caplog.messages == [
        "module: masked: conv.weight, head.weight; kept: conv.weight, head.weight, conv.bias, head.bias",
        "batch norms folded into the layer before: 1",
        "dropouts turned off: 1",
        "frozen.from = 'module' is used; frozen.init = 'uniform-pm1' is not",
    ]
    seen = build(result.config, None, module).dataset.normalise(raw())
    torch.testing.assert_close(result.local_models()[0](raw()), module(seen), atol=1e-5, rtol=1e-4)
    assert isinstance(module.norm, nn.BatchNorm2d)  # the caller's own stays as it is
    peermask.export(result, 0, tmp_path / "a.ticket")
    torch.testing.assert_close(
        peermask.load_ticket(tmp_path / "a.ticket", module=module)(raw()), module(seen), atol=1e-5, rtol=1e-4
    )


def test_the_checksum_covers_buffers() -> None:
    class Shifted(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.flat = nn.Flatten()
            self.head = nn.Linear(64, 10)
            self.register_buffer("shift", torch.tensor(shift))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.flat(x)) + self.shift  # type: ignore[no-any-return]

    sums = []
    for shift in (1.0, 2.0):
        torch.manual_seed(0)
        config = peermask.make_config(values(frozen={"from": "module"}))
        sums.append(build(config, None, Shifted(shift)).frozen.checksum)
    assert sums[0] != sums[1]
