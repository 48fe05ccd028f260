"""Every command of every page, in the order of the page, in an empty folder."""

from __future__ import annotations

import re
import shlex
import shutil
import webbrowser
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
import typer.main

from commands import Call
from peermask.cli.main import app
from peermask.run.result import RunResult
from test_snippets import snippets

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((ROOT / "docs").glob("*.md"))
PROGRAMS = ("peermask ", "python ", "pip ", "make ", "torchrun ", "docker ", "ssh ", "scp ")
TRIED_HERE = ("README.md", "docs/deploy.md", "docs/export.md", "docs/report.md")
TRIED_ELSEWHERE = {
    "docs/adding.md": "tests/test_snippets.py",
    "docs/asynchronous.md": "tests/fleet/test_asynchronous_fleet.py: a replay needs a fleet that has ended",
    "docs/benchmarks.md": "tests/test_benchmark_figures.py: a benchmark takes minutes",
    "docs/data.md": "tests/test_snippets.py",
    "docs/scale.md": "tests/run/test_ranks.py, tests/run/test_hosts.py",
    "docs/theory.md": "tests/paper/theory: each takes up to minutes",
}
NOT_RUN = {
    "make": "starts these tests; .ci/run calls each target",
    "pip": "installs packages",
    "docker": "tests/test_container.py",
    "ssh": "needs a second device",
    "scp": "needs a second device",
    "peermask watch": "serves until it is stopped: tests/reports/test_report_watch.py",
    "peermask relay": "serves until it is stopped: tests/fleet/test_relay.py",
    "peermask node": "waits for other devices; a swarm is the same agents",
    "peermask fleet status": "agents must run, and `--watch` does not end: tests/fleet/test_status.py",
    "peermask fleet collect": "needs agents that have ended: the test of a laptop calls it",
}
EXPERIMENT = """
agents = 4
rounds = 4
batch_size = 8
retention = 0.3
graph = "ring"
data = { fraction = 0.1, validation = 0.1 }
model = { name = "mlp", hidden = [12] }
evaluation = { every = 2 }
"""
ROOT_COMMAND: click.Command = typer.main.get_command(app)  # type: ignore[assignment]
Page = Callable[..., str]


def commands(page: str, heading: str | None = None) -> list[str]:
    """The commands of a page, or of one of its sections, in order: lines of fenced and of indented blocks."""
    found, section, fenced = [], "", False
    for line in (ROOT / page).read_text().replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.startswith("#"):
            section = line.lstrip("# ")
        elif (fenced or line.startswith("    ")) and line.strip().startswith(PROGRAMS) and heading in (None, section):
            found.append(" ".join(line.split(" #")[0].split()))
    return found


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Page:
    """`run_page("docs/export.md", "Readout")`: the commands of a section, in this process; what they print."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda address: address.startswith("file://"))
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)

    def run(page: str, heading: str, replaced: dict[str, str] | None = None) -> str:
        said = ""
        for command in commands(page, heading):
            if command.startswith(tuple(NOT_RUN)):
                continue
            for written, here in (replaced or {}).items():
                command = command.replace(written, here)
            command, _, to = command.partition(" > ")
            words = [
                name
                for word in shlex.split(command)[1:]
                for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
            ]
            ended, out, err = call(*words)
            assert ended == 0, f"{command}: {out}{err}"
            if to:
                Path(to).write_text(out)
            said += out
        return said

    return run


def test_commands_of_every_page_are_tried_somewhere() -> None:
    pages = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {page for page in pages if commands(page)} == {*TRIED_HERE, *TRIED_ELSEWHERE}
    for tests in TRIED_ELSEWHERE.values():
        for name in re.findall(r"tests/[\w/]+(?:\.py)?", tests):
            assert (ROOT / name).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_mentions_exists_with_its_options(page: Path) -> None:
    text = page.read_text()
    mentioned = re.findall(r"`(peermask [^`\n]+)`", text) + commands(str(page.relative_to(ROOT)))
    for line in mentioned:
        if not line.startswith("peermask ") or line == "peermask roster 1":  # bytes that are signed, in wire.md
            continue
        command = ROOT_COMMAND
        words = shlex.split(line.split(" #")[0].split(" > ")[0])[1:]
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        bare = not words or words[0].startswith("-") or not hasattr(command, "commands")
        assert bare, f"{page.name}: no command {line}"
        known = {name for parameter in command.params for name in parameter.opts}
        for word in words:
            assert not word.startswith("--") or word.split("=")[0] in known | {"--version", "--help"}, line


@pytest.fixture
def two_runs(run_page: Page, call: Call) -> None:  # noqa: ARG001 (its folder)
    for name, seed in (("runs/a", 0), ("runs/b", 1)):
        assert call("run", "experiment.toml", "--out", name, "--set", f"seed={seed}")[0] == 0


@pytest.mark.long
@pytest.mark.usefixtures("two_runs")
def test_export(run_page: Page) -> None:
    pytest.importorskip("onnxruntime")
    image = pytest.importorskip("PIL.Image")
    for name in ("photo.png", "another.png"):
        image.new("L", (8, 8), 100).save(name)
    np.save("rows.npy", np.zeros((2, 1, 8, 8), np.uint8))
    run_page("docs/export.md", "Exporting models")
    assert len(list(Path("models").glob("*.onnx"))) == 4
    run_page("docs/export.md", "Weights as signs")
    load, own = snippets("export.md", "python")
    names: dict[str, object] = {}
    exec("import peermask, torch\nimages = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)\n" + load, names)
    exec(
        "import peermask\nfrom torch import nn\n"
        "my_network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))\n"
        "result = peermask.run_experiment('experiment.toml', 'own', module=my_network)\n"
        + own.replace("agent3", "own3"),
        names,
    )
    Path("experiment.toml").write_text(EXPERIMENT.replace('{ name = "mlp", hidden = [12] }', '"mlp"'))
    limits = {"50ms": "5s", "5ms": "5s", "2MB": "1GB", "9MB": "1GB"}  # which any machine keeps
    limits["alexnet"] = "mlp --retentions 0.5"  # all seven take a minute
    run_page("docs/export.md", "Which retention a device can run", limits)


@pytest.mark.usefixtures("two_runs")
def test_report(run_page: Page) -> None:
    pytest.importorskip("tensorboard")
    run_page("docs/report.md", "Reports")
    run_page("docs/report.md", "TensorBoard")
    run_page("docs/report.md", "Sweeps")
    names = {"RUN": "runs/a", "OTHER": "runs/b", "delete": "delete --yes"}
    said = run_page("docs/report.md", "List, compare and delete runs", names)
    assert "seed" in said
    assert not Path("runs/a").exists()


@pytest.mark.long
def test_readme(run_page: Page, call: Call) -> None:
    """The experiment of the page has other data and fewer rounds here; its keys are tried by the plan."""
    (written,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    for shown, here in (
        ('{ name = "cifar10", folder = "data/cifar-10-batches-bin" }', '"digits"'),
        ("agents = 20", "agents = 4"), ("rounds = 400", "rounds = 2"), ("alexnet", "mlp"),
    ):  # fmt: skip
        assert shown in written
        written = written.replace(shown, here)
    Path("experiment.toml").write_text(written)
    assert call("run", "experiment.toml", "--out", "runs/NAME")[0] == 0
    run_page("README.md", "Next steps", {"--device cuda": "--device cpu"})
    (python,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    exec(python, {})
    assert Path("agent3.ticket").exists()


@pytest.mark.long
def test_four_agents_on_a_laptop(run_page: Page, call: Call) -> None:
    """And the folders of its agents collected, as those of four devices."""
    pytest.importorskip("zenoh")
    few = {"graph.name=ring": "graph.name=ring --set rounds=6 --set algorithm=mce-pl"}
    run_page("docs/deploy.md", "Four agents on one laptop", few)
    folders = [path.parent for path in Path("runs").glob("*/manifest.json")]
    assert len({RunResult.open(folder).hash for folder in folders}) == 1
    assert len(folders) == 2
    (agents,) = Path("runs").glob("*/agents")
    for agent in agents.glob("agent-?"):
        shutil.copytree(agent, agent.name)
    (collect,) = [command for command in commands("docs/deploy.md") if command.startswith("peermask fleet collect")]
    code, out, err = call(*shlex.split(collect)[1:])
    assert code == 0, out + err
    assert RunResult.open("run").hash == RunResult.open(folders[0]).hash


def test_four_devices(run_page: Page) -> None:
    pytest.importorskip("zenoh")
    for section in ("Four devices", "Watching a fleet", "Agents come and go", "Replacing the authority"):
        run_page("docs/deploy.md", section)
    assert Path("peermask-agent-3.service").is_file()


@pytest.mark.usefixtures("run_page")
def test_keys_that_never_leave_their_device(call: Call) -> None:
    pytest.importorskip("zenoh")
    assert call("fleet", "new", "fleet.toml", "experiment.toml")[0] == 0
    certs, request, enrol = commands("docs/deploy.md", "Keys that never leave their device")
    for command in (certs, request):
        code, said, err = call(*command.split()[1:])
        assert code == 0, err
    shutil.copy("certs/agent-3.csr", ".")
    (fingerprint,) = re.findall(r"\b[0-9a-f]{32}\b", said)
    code, out, err = call(*enrol.replace("0123456789abcdef0123456789abcdef", fingerprint).split()[1:])
    assert code == 0, out + err
