"""What a run wrote, read without trust: manifest.json, result.json, and tables that a resumed run adds to."""

from __future__ import annotations

from math import isclose
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from peermask.config.experiment import ExperimentConfig
from peermask.data.dataset import Task
from peermask.errors import RunError
from peermask.files import read_json, write_json
from peermask.models.outputs import Readout
from peermask.store.folder import RunFolder
from peermask.store.table import Extent, check_extents, extents, read_rows

Model = TypeVar("Model", bound=BaseModel)


class _Agent(BaseModel):
    agent: NonNegativeInt
    labels: list[int]
    retention: FiniteFloat
    links: NonNegativeInt


class _Dataset(BaseModel):
    name: str
    sha256: str


class _Graph(BaseModel):
    links: list[tuple[NonNegativeInt, NonNegativeInt]]


class _Layer(BaseModel):
    name: str
    kind: str
    shape: list[PositiveInt] = Field(min_length=1)


class _Manifest(BaseModel):
    """Of a manifest what tables and reports rely on."""

    dataset: _Dataset
    graph: _Graph
    agents: list[_Agent] = Field(min_length=1)
    classes: list[str]
    readout: Readout = "all"  # as all runs of earlier versions
    task: Task = "classification"
    figures: list[str] = Field(["accuracy"], min_length=1)  # the one that counts first
    weights: PositiveInt
    parameters: PositiveInt
    layers: list[_Layer] = Field(min_length=1)
    earlier_hashes: list[str] = []


class _Result(BaseModel):
    status: str
    round: NonNegativeInt
    hash: str
    seconds: float
    tables: dict[str, Extent] = {}


def read_manifest(path: Path) -> dict[str, Any]:
    content = read_json(path)
    _check(path, _Manifest, content, "restore the file, or start a new run")
    numbers = [known["agent"] for known in content["agents"]]
    held = {label for known in content["agents"] for label in known["labels"]}
    if not held <= set(range(len(content["classes"]))):
        raise RunError(
            f"{path} is damaged (agents.labels: not of labels 0 to {len(content['classes']) - 1}); "
            "restore the file, or start a new run"
        )
    linked = {agent for link in content["graph"]["links"] for agent in link}
    if numbers != list(range(len(numbers))) or not linked <= set(numbers):
        raise RunError(
            f"{path} is damaged (agents and graph.links: not of agents 0 to {len(numbers) - 1}); "
            "restore the file, or start a new run"
        )
    return content


def write_result(folder: RunFolder, content: dict[str, Any]) -> None:
    """The result of a run, with digests of the tables it was computed from."""
    write_json(folder.result, {**content, "tables": extents(folder.path, content["round"])})


def read_result(path: Path) -> dict[str, Any]:
    """Nothing yet for a run that has not come to its end; of one that has, the tables are checked as well."""
    if not path.is_file():
        return {}
    remedy = f"delete it and go on with `peermask run --resume {path.parent}`"
    content = read_json(path, remedy)
    check_extents(path.parent, _check(path, _Result, content, remedy).tables, path)
    return content


def check_tables(folder: RunFolder, config: ExperimentConfig, done: int) -> None:
    """That all rows up to a checkpoint are there: without them a resumed run would have a wrong result."""
    every = range(config.evaluation.every, done + 1, config.evaluation.every)
    metrics = read_rows(folder.metrics)
    _check_rows(folder.metrics, metrics, {*every, *([done] if done == config.rounds else [])}, config.agents)
    traffic = read_rows(folder.traffic)
    _check_rows(folder.traffic, traffic, {int(row["round"]) for row in traffic}, config.agents)
    last = max((int(row["round"]) for row in metrics), default=0)
    told = sum(float(row["sent_bytes"]) for row in metrics if int(row["round"]) == last)
    upto = [row for row in traffic if int(row["round"]) <= last]
    sent = sum(int(row["links"]) * float(row["coded_bytes"]) for row in upto)
    if not isclose(sent, told, rel_tol=1e-5):  # tables hold seven digits
        raise RunError(
            f"{folder.traffic} lacks rows: {sent:.0f} bytes sent by round {last}, by metrics.csv {told:.0f}; "
            "restore the file, or start a new run"
        )


def _check_rows(path: Path, rows: list[dict[str, str]], rounds: set[int], agents: int) -> None:
    found = {(int(row["round"]), int(row["agent"])) for row in rows}
    lacking = sorted({(number, agent) for number in rounds for agent in range(agents)} - found)
    if lacking:
        number, agent = lacking[0]
        raise RunError(f"{path} lacks agent {agent} in round {number}; restore the file, or start a new run")
    foreign = max(agent for _, agent in found) if found else 0
    if foreign >= agents:
        raise RunError(f"{path} has rows of agent {foreign}, of {agents} agents; restore the file, or start a new run")


def _check(path: Path, shape: type[Model], content: dict[str, Any], remedy: str) -> Model:
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RunError(f"{path} is damaged ({place}: {first['msg']}); {remedy}") from None
