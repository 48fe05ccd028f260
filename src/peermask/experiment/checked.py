"""What a run wrote about itself, manifest.json and result.json, read without trust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from peermask.errors import RunError
from peermask.experiment.folder import read_json


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
    weights: PositiveInt
    parameters: PositiveInt
    layers: list[_Layer] = Field(min_length=1)


class _Result(BaseModel):
    status: str
    round: NonNegativeInt
    hash: str
    seconds: float


def read_manifest(path: Path) -> dict[str, Any]:
    content = read_json(path)
    _check(path, _Manifest, content, "restore the file, or start a new run")
    beyond = max((agent for link in content["graph"]["links"] for agent in link), default=0)
    if beyond >= len(content["agents"]):
        raise RunError(
            f"{path} is damaged (graph.links: agent {beyond} is not among {len(content['agents'])} agents); "
            "restore the file, or start a new run"
        )
    return content


def read_result(path: Path) -> dict[str, Any]:
    """Nothing yet for a run that has not come to its end."""
    if not path.is_file():
        return {}
    content = read_json(path)
    _check(path, _Result, content, f"delete it and go on with `peermask run --resume {path.parent}`")
    return content


def _check(path: Path, shape: type[BaseModel], content: dict[str, Any], remedy: str) -> None:
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RunError(f"{path} is damaged ({place}: {first['msg']}); {remedy}") from None
