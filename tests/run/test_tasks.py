"""Each task and kind of input from run to export: resumed to the same hash, exported to what the run said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_cases import CASES, TABLE, Lstm, config, split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peermask
from commands import stop_after
from peermask.cli.main import main
from peermask.config.file import make_config
from peermask.data.measures import metrics
from peermask.data.normalisation import Statistics
from peermask.errors import ConfigError, DataError, ExportError, ModelError, RunError
from peermask.exports.predict import evaluate
from peermask.exports.reader import open_model
from peermask.exports.write import export
from peermask.models.outputs import losses
from peermask.reports.page import gather
from peermask.reports.tables import agents_table, closing_lines
from peermask.run.build import build
from peermask.run.execution import Execution
from peermask.run.plan import gradient_path, make_plan
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.store.table import read_rows


@pytest.mark.parametrize("name", list(CASES))
def test_from_run_to_export(name: str, tmp_path: Path) -> None:
    make, changes, figures = CASES[name]
    data = make()
    result = peermask.run_experiment(config(**changes), tmp_path / "run", dataset=data)
    assert set(figures) <= set(result.figures)
    assert result.main_figure == figures[0]
    cut = peermask.run_experiment(config(**changes), tmp_path / "cut", dataset=data, execution=stop_after(4))
    assert cut.round == 4
    resumed = peermask.run_experiment(config(**changes), tmp_path / "cut", dataset=data, resume=True)
    assert resumed.hash == result.hash
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.metrics()]
    again = [{k: v for k, v in row.items() if k != "seconds"} for row in resumed.metrics()]
    np.testing.assert_equal(again, rows)
    peermask.export(result, 1, tmp_path / "a.ticket")
    answers = result.local_models()[1](data.test.inputs)
    assert torch.equal(peermask.load_ticket(tmp_path / "a.ticket")(data.test.inputs), answers)
    found = peermask.evaluate(tmp_path / "a.ticket", data)
    for figure in figures:
        assert found.figures[figure] == pytest.approx(result.agents[1].value(figure), rel=1e-5, abs=1e-6)
    held = json.loads((tmp_path / "run" / "manifest.json").read_text())["inputs"]
    assert (held["normalisation"] is None) == (data.normalisation is None)
    page = peermask.report(result, tmp_path / "page").read_text()
    assert f'"figure":"{figures[0]}"' in page.replace(" ", "")


def test_a_recurrent_network_of_ones_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make, _, _ = CASES["tokens"]
    module, data = Lstm(), make()
    result = peermask.run_experiment(config(), tmp_path / "run", dataset=data, module=module)
    (line,) = caplog.messages
    assert line == (
        "module: masked: embedding.weight, lstm.weight_ih_l0, lstm.weight_hh_l0, head.weight; drawn by frozen.init = "
        "'signed-constant': embedding.weight, lstm.weight_ih_l0, lstm.weight_hh_l0, head.weight; set to 0: "
        "lstm.bias_ih_l0, lstm.bias_hh_l0, head.bias; frozen.from = 'module' would keep the module's own values"
    )
    at_once = peermask.Execution(chunk=3)
    both = peermask.run_experiment(config(), tmp_path / "stack", dataset=data, module=module, execution=at_once)
    assert both.hash == result.hash
    peermask.export(result, 0, tmp_path / "a.ticket")
    found = peermask.evaluate(tmp_path / "a.ticket", data, module=module)
    assert found.figures["accuracy"] == pytest.approx(result.agents[0].test_accuracy_last, abs=1e-6)


class Attention(nn.Module):
    """Whether the first of five tokens, each a number, is positive: positions decide which it is."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.position = nn.Linear(1, 16), nn.Parameter(torch.zeros(5, 16))
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.value(x[:, :, None]) + self.position).mean(1))  # type: ignore[no-any-return]


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))


@pytest.mark.parametrize("network", ["attention", "batch norm"])
def test_networks_of_ones_own_learn_and_are_exported(network: str, tmp_path: Path) -> None:
    data = CASES["table"][0]()
    module = Attention() if network == "attention" else peermask.without_batch_norm(Normed())
    changes = {"agents": 2, "rounds": 60, "algorithm": "accord"}
    result = peermask.run_experiment(config(**changes), tmp_path / "run", dataset=data, module=module)
    assert result.mean_accuracy > 0.65
    for name in ("a.ticket", "a.onnx"):
        peermask.export(result, 0, tmp_path / name, dataset=data, module=module)
        given = module if name.endswith("ticket") else None
        found = peermask.evaluate(tmp_path / name, data, module=given)
        assert found.figures["accuracy"] == pytest.approx(result.agents[0].test_accuracy_last, abs=0.03)


def test_batch_norms_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model layer '1' is a batch norm.*peermask.without_batch_norm\(module\)"):
        peermask.run_experiment(config(), tmp_path / "run", dataset=CASES["table"][0](), module=Normed())


@pytest.mark.parametrize("algorithm", ["ind-mask", "mce-pl", "accord"])
def test_masks_learn_a_regression_better_than_the_mean(algorithm: str, tmp_path: Path) -> None:
    make, _, _ = CASES["regression"]
    changes = {"agents": 2, "model": "mlp", "rounds": 60, "algorithm": algorithm}
    result = peermask.run_experiment(config(**changes), tmp_path / "run", dataset=make())
    assert result.mean("r2") > 0.5


def test_regression_learns_and_its_tables_say_so(tmp_path: Path) -> None:
    make, changes, _ = CASES["regression"]
    data = make()
    result = peermask.run_experiment(
        config(**changes, rounds=60, algorithm={"name": "dsgd", "lr": 0.1}, compare=["mce-pl"]),
        tmp_path / "run",
        dataset=data,
    )
    assert result.mean("r2") > 0.8
    assert result.mean("mae") < 20  # in units of the targets, whose deviation is about 55
    assert np.isnan(result.mean_accuracy)
    headings = [column.header for column in agents_table(result).columns]
    assert "R²" in headings
    assert any("of mean R²" in line for line in closing_lines(result))
    single = agents_table(result.compared[0])
    assert [column.header for column in single.columns][3:5] == ["R²", "MAE"]
    held = json.loads((result.folder.path / "result.json").read_text())
    assert held["test_r2"] == pytest.approx(result.mean("r2"))
    assert "test_accuracy" not in held
    with pytest.raises(RunError, match="which has no labels, so no confusion matrix"):
        result.confusion(data)
    assert "R²" in result._repr_html_()


def test_confusion_is_of_each_agents_test_samples(tmp_path: Path) -> None:
    make, changes, _ = CASES["images"]
    data = make()
    result = peermask.run_experiment(config(**changes), tmp_path / "run", dataset=data)
    samples = build(result.config, data).samples
    written = torch.zeros(len(result.agents), 3, 3, dtype=torch.int64)
    for row in read_rows(result.folder.confusion):
        written[int(row["agent"]), int(row["label"]), int(row["answer"])] = int(row["samples"])
    assert torch.equal(written, torch.stack(result.confusion()))
    shown = gather([result.root])["runs"][0]["confusion"]
    assert sorted(shown) == list(range(len(result.agents)))
    assert sum(count for _, _, count in shown[0]) == len(samples[0].test)
    for agent, (counts, own) in enumerate(zip(result.confusion(), samples, strict=True)):
        assert counts.shape == (3, 3)
        assert int(counts.sum()) == len(own.test)
        accuracy = float(counts.diagonal().sum()) / len(own.test)
        assert accuracy == pytest.approx(result.agents[agent].test_accuracy_last, abs=1e-6)


def test_a_loss_and_a_metric_of_ones_own(tmp_path: Path) -> None:
    @losses.register("test-cubic")
    def cubic(outputs: Tensor, targets: Tensor) -> Tensor:
        """|o - y|³"""
        return (outputs - targets).abs().pow(3).mean(-1)

    @metrics.register("test-within-50")
    def within(outputs: Tensor, targets: Tensor) -> Tensor:
        """Share of values that are off by less than 50."""
        return ((outputs - targets).abs() < 50).float().mean()

    make, changes, _ = CASES["regression"]
    task = {"loss": "test-cubic", "metrics": ["test-within-50"]}
    result = peermask.run_experiment(config(**changes, task=task), tmp_path / "run", dataset=make())
    plain = peermask.run_experiment(config(**changes), tmp_path / "plain", dataset=make())
    assert result.hash != plain.hash
    assert 0 <= result.mean("test-within-50") <= 1
    assert "test_test-within-50" in result.metrics()[0]
    with pytest.raises(ConfigError, match=r"task.loss = 'cross-entropy' does not fit regression"):
        build(peermask.make_config(config(**changes, task={"loss": "cross-entropy"})), make())
    with pytest.raises(ConfigError, match="unknown loss 'test-cubi'; did you mean 'test-cubic'"):
        peermask.make_config({"task": {"loss": "test-cubi"}})


def test_predict_takes_raw_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, changes, _ = CASES["regression"]
    data = make()
    result = peermask.run_experiment(config(**changes, rounds=2), tmp_path / "run", dataset=data)
    peermask.export(result, 0, tmp_path / "a.ticket")
    np.save(tmp_path / "rows.npy", TABLE[120:122])  # raw, in float64
    command(["predict", str(tmp_path / "a.ticket"), str(tmp_path / "rows.npy")], 0)
    wanted = result.local_models()[0](data.test.inputs[:2]).flatten().tolist()
    said = capsys.readouterr().out.splitlines()
    assert [line.split(": 0 ")[0] for line in said] == [f"{tmp_path / 'rows.npy'} row {row}" for row in (0, 1)]
    assert [float(line.split(": 0 ")[1]) for line in said] == pytest.approx(wanted, rel=1e-4)
    np.save(tmp_path / "wide.npy", np.zeros((2, 9)))
    np.save(tmp_path / "nan.npy", np.full((2, 5), np.nan))
    (tmp_path / "text.npy").write_bytes(b"no array")
    for name, message in (
        ("wide.npy", "has shape (2, 9); the model takes [n, 5]"),
        ("nan.npy", "NaN or infinite"),
        ("text.npy", "cannot be read"),
        ("x.png", "is not an .npy file"),
    ):
        command(["predict", str(tmp_path / "a.ticket"), str(tmp_path / name)], 2)
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1


def test_tokens_that_a_ticket_does_not_know(tmp_path: Path) -> None:
    from peermask.exports.predict import predict

    make, changes, _ = CASES["tokens"]
    result = peermask.run_experiment(config(**changes, rounds=2), tmp_path / "run", dataset=make())
    peermask.export(result, 0, tmp_path / "a.ticket")
    np.save(tmp_path / "rows.npy", np.full((2, 9), 20))
    with pytest.raises(ExportError, match=r"rows.npy has tokens from 20 to 20; the model knows 0 to 19"):
        predict(tmp_path / "a.ticket", [tmp_path / "rows.npy"])
    np.save(tmp_path / "rows.npy", np.full((2, 9), 19))
    assert [found.row for found in predict(tmp_path / "a.ticket", [tmp_path / "rows.npy"])] == [0, 1]


def command(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code


def test_an_image_of_another_bit_depth_is_refused(tmp_path: Path) -> None:
    from peermask.exports.predict import predict

    image = pytest.importorskip("PIL.Image")
    result = peermask.run_experiment(
        {"agents": 2, "rounds": 1, "graph": "complete", "model": {"name": "mlp", "hidden": [8]}, "retention": 0.5},
        tmp_path / "run",
    )
    peermask.export(result, 0, tmp_path / "a.ticket")
    image.fromarray(np.full((8, 8), 40000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ExportError, match=r"deep.png has more than 8 bits a pixel \(mode I;16\)"):
        predict(tmp_path / "a.ticket", [tmp_path / "deep.png"])


def test_plan_accounts_for_every_parameter() -> None:
    make, _, _ = CASES["tokens"]
    experiment = build(peermask.make_config(config()), make(), Lstm())
    plan = make_plan("lstm", experiment, torch.device("cpu"))
    assert plan.account == {
        "masked, embedding": (1, 80),
        "masked, recurrent": (2, 24 * 4 + 24 * 6),
        "masked, linear": (1, 12),
        "not masked, bias": (3, 24 + 24 + 2),
    }
    assert sum(count for _, count in plan.account.values()) == plan.parameters
    assert len(plan.notes) == 1


@pytest.mark.parametrize(
    ("name", "module", "path"),
    [
        ("table", None, "agents in fused kernels"),
        ("images", None, "agents as groups (sizes that the kernels cannot do)"),
        ("series", None, "agents in stacked operations"),
        ("tokens", Lstm(), "agents one after another (torch cannot vectorise recurrent layers and attention)"),
        (
            "table",
            nn.Sequential(nn.Linear(5, 2), nn.PReLU()),
            "agents vectorised (the module has operations that cannot be stacked)",
        ),
    ],
)
def test_plan_says_how_a_gpu_computes_gradients(name: str, module: nn.Module | None, path: str) -> None:
    make, changes, _ = CASES[name]
    experiment = build(peermask.make_config(config(**({} if module else changes))), make(), module)
    assert gradient_path(experiment, torch.device("cuda")) == path


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"readout": "own"}, {}, "readout = 'own': regression has no labels to answer among"),
    ({"partition": {"name": "labels"}}, {}, "needs labels, and regression has none"),
    ({"data": {"flip": True}}, {}, "data.flip and data.crop are for images"),
    ({"model": "cnn"}, {}, "model.name = 'cnn' does not fit the 5 inputs of arrays: it takes inputs of 3 axes"),
    ({"model": "text"}, {}, "these inputs have no vocabulary"),
    ({"frozen": {"from": "module"}}, {}, "none was given"),
    ({"frozen": {"drawn": ["0.*"]}}, {}, "set frozen.from, or delete it"),
    ({}, {"module": Lstm}, r"module is the class Lstm; give an instance: Lstm\(\)"),
    ({}, {"dataset": DataLoader(TensorDataset(torch.rand(4, 3)))}, "dataset is a DataLoader; give what it loads"),
    ({}, {"module": nn.Sequential(nn.Linear(4, 1))}, "does not fit inputs of shape 5"),
]


@pytest.mark.parametrize(("changes", "given", "message"), BAD)
def test_what_does_not_fit_is_one_line(changes: dict[str, Any], given: dict[str, Any], message: str) -> None:
    data = CASES["regression"][0]()
    values = config(**{"model": {"name": "mlp", "hidden": [24]}, **changes})
    with pytest.raises((ConfigError, DataError, ModelError), match=message) as caught:
        build(peermask.make_config(values), **{"dataset": data, **given})
    assert "\n" not in str(caught.value)


def test_statistics_are_kept_in_the_ticket_and_not_taken_again(tmp_path: Path) -> None:
    """A ticket normalises by the data it was trained on, whatever it is tested on."""
    make, changes, _ = CASES["table"]
    result = peermask.run_experiment(config(**changes, rounds=2), tmp_path / "run", dataset=make())
    peermask.export(result, 0, tmp_path / "a.ticket")
    shifted = split(TABLE + 1000, (TABLE[:, 1] > 100).astype(int))
    assert isinstance(shifted.normalisation, Statistics)
    model = peermask.load_ticket(tmp_path / "a.ticket")
    right = model(shifted.test.inputs).argmax(1) == shifted.test.targets
    assert peermask.evaluate(tmp_path / "a.ticket", shifted).right == int(right.sum())
    with pytest.raises(ExportError, match="takes float32 for classification; arrays has float32 for multi-label"):
        peermask.evaluate(tmp_path / "a.ticket", split(TABLE, TABLE[:, :2] > 0, task="multi-label"))


def test_agents_as_they_are_in_an_npz_file(tmp_path: Path) -> None:
    labels = (TABLE[:, 1] > 100).astype(int)
    owners = np.arange(160) % 3
    arrays: dict[str, Any] = {
        "x_train": TABLE[:120], "y_train": labels[:120], "x_test": TABLE[120:], "y_test": labels[120:]
    }  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays, agent_train=owners[:120], agent_test=owners[120:])
    values = config(
        partition={"name": "given"}, dataset={"name": "npz", "path": str(tmp_path / "a.npz")}, model="mlp", rounds=2
    )
    result = peermask.run_experiment(values, tmp_path / "run")
    experiment = build(result.config)
    assert [set(owners[own.train].tolist() + owners[120 + own.test].tolist()) for own in experiment.samples] == [
        {0},
        {1},
        {2},
    ]
    assert RunResult.open(tmp_path / "run").agents[0].test_accuracy == result.agents[0].test_accuracy


KINDS = (".ticket", ".onnx", ".safetensors")


@pytest.mark.long
@pytest.mark.parametrize("case", list(CASES))
def test_all_kinds_take_raw_inputs_of_every_shape_and_task(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    make, changes, _ = CASES[case]
    data = make()
    values = config(**changes, rounds=2)
    result = run_experiment(make_config(values), tmp_path / "run", dataset=data, execution=Execution("cpu"))
    raw = data.test.inputs[:10]
    wanted = result.local_models()[1](raw)
    np.save(tmp_path / "rows.npy", raw.numpy())
    found, said = [], []
    for suffix in KINDS:
        path = tmp_path / f"a{suffix}"
        export(result, 1, path)
        model = open_model(path)
        assert (model.shape, model.task, model.classes) == (data.shape, data.task, data.classes)
        assert model.inputs is not None
        assert (model.inputs.normalisation, model.inputs.target_scale) == (data.normalisation, data.target_scale)
        assert (model.inputs.dtype, model.inputs.vocabulary) == (str(raw.dtype)[6:], data.vocabulary)
        assert torch.allclose(model.outputs(raw), wanted, rtol=1e-4, atol=1e-4)
        found.append(evaluate(path, data))
        with pytest.raises(SystemExit):
            main(["predict", str(path), str(tmp_path / "rows.npy"), "--json", "--top", "1"])
        said.append(json.loads(capsys.readouterr().out))
    assert [one.figures for one in found[1:]] == [pytest.approx(found[0].figures, rel=1e-4)] * 2
    assert [one["row"] for one in said[0]] == list(range(10))
    for other in said[1:]:
        for one, first in zip(other, said[0], strict=True):
            if data.task == "regression":
                assert [value["output"] for value in one["values"]] == list(data.classes)
                assert one["values"][0]["value"] == pytest.approx(first["values"][0]["value"], rel=1e-3, abs=1e-3)
            else:
                assert one["classes"][0]["probability"] == pytest.approx(first["classes"][0]["probability"], rel=1e-3)
