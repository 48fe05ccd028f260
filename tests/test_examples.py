"""What a notebook needs: an example that runs top to bottom, and results that show themselves."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import peermask
from peermask.config.experiment import ExperimentConfig
from peermask.models.architectures import efficientnet_lite0

EXAMPLES = Path(__file__).parents[1] / "examples"
Small = Callable[..., ExperimentConfig]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`example("tabular", folder)`: run a script as a user does; what it prints."""

    def run(name: str, *arguments: object) -> str:
        script = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.long
def test_the_example_runs_top_to_bottom_and_again(example: Callable[..., str], tmp_path: Path) -> None:
    for _ in range(2):
        said = example("first_steps", tmp_path)
        assert "together " in said
        assert "the ticket is right on" in said
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize(("name", "needs"), [("tabular", "sklearn"), ("surnames", "faker")])
def test_data_from_a_package_in_thirty_lines(
    example: Callable[..., str], name: str, needs: str, tmp_path: Path
) -> None:
    pytest.importorskip(needs)
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 30
    said = example(name, tmp_path, 3)
    assert "together " in said
    assert "the ticket is right on" in said


@pytest.mark.long
def test_masks_over_a_pretrained_network(example: Callable[..., str], tmp_path: Path) -> None:
    """With weights of the right names and images of noise; called again, nothing is left to do."""
    torch.manual_seed(0)
    torch.save(efficientnet_lite0((3, 32, 32), 1000).state_dict(), tmp_path / "weights.pth")
    images, labels = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    given = {"weights": tmp_path / "weights.pth", "data": tmp_path / "data.npz", "out": tmp_path / "out"}
    small = {"device": "cpu", "side": 32, "agents": 2, "images": 15, "labels": 2, "batch": 4, "rounds": 2, "arms": 3}
    options = [
        text for name, value in {**given, **small, "tuning-rounds": 1}.items() for text in (f"--{name}", str(value))
    ]
    outcomes = []
    for _ in range(2):
        example("pretrained", *options)
        outcomes.append((tmp_path / "out" / "outcomes.jsonl").read_text())
    assert outcomes[0] == outcomes[1]
    assert "failed" not in outcomes[0]
    page = (tmp_path / "out" / "README.md").read_text()
    assert "| given | ind-mask |" in page
    assert "| features | probe, DSGD |" in page


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.seen.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_result_shows_itself(small: Small, tmp_path: Path) -> None:
    result = peermask.run_experiment(small(name="a.b", compare=["ind-mask"]), tmp_path / "run")
    shown = result._repr_html_()
    page = Elements()
    page.feed(shown)
    assert page.open == []
    assert page.seen.count("tr") == 1 + 4 + 1
    assert page.seen.count("polyline") == 2
    assert f"{100 * result.mean_accuracy:.1f} %" in shown
    assert "ind-mask" in shown
    unfinished = peermask.run_experiment(
        small(), tmp_path / "cut", execution=peermask.Execution(should_stop=lambda: True)
    )
    assert "<td>-</td>" in unfinished._repr_html_()  # nothing is evaluated yet


def test_progress_is_one_line(small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watched = peermask.Execution(observer=peermask.ProgressLine())
    peermask.run_experiment(small(), tmp_path / "run", execution=watched)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\rmce-pl: round 4 of 4, accuracy " in said
    assert "mce-pl: finished, accuracy " in said


def test_reports_exports_and_evaluations_take_a_result_or_its_folder(small: Small, tmp_path: Path) -> None:
    result = peermask.run_experiment(small(), tmp_path / "run")
    assert peermask.report(result) == tmp_path / "run" / "report.html"
    assert peermask.report([str(tmp_path / "run"), result], tmp_path / "page").is_file()
    assert peermask.export(tmp_path / "run", 1, tmp_path / "a.ticket").size > 100
    by_name = peermask.evaluate(tmp_path / "a.ticket", "digits")
    assert by_name == peermask.evaluate(tmp_path / "a.ticket", {"name": "digits"})
    assert by_name.own_samples > 0
    with pytest.raises(peermask.PeermaskError, match="did you mean 'digits'"):
        peermask.evaluate(tmp_path / "a.ticket", "digit")
