"""Writes everything an output folder shows, from finished runs: tables, figures, configs, an index."""

from __future__ import annotations

import re

from peermask.errors import ConfigError
from peermask.files import write_atomically, write_json, writing
from peermask.reproduce.campaign import Campaign
from peermask.reproduce.cells import Cell
from peermask.reproduce.figures import draw
from peermask.reproduce.filter_tables import filter_tables
from peermask.reproduce.preset import known, preset
from peermask.reproduce.retention_tables import retention_tables
from peermask.reproduce.tables import comma_separated, grid, latex, markdown


def write_pages(campaign: Campaign) -> list[str]:
    """All experiments of a campaign; returns what could not be done, one line each."""
    problems: list[str] = []
    for name in campaign.names:
        problems += _write_experiment(campaign, name)
        _write_configs(campaign, name)
    write_json(campaign.home.choices, campaign.tuning.record())
    _write(campaign, "README.md", _index(campaign))
    return list(dict.fromkeys(problems))


def _write_experiment(campaign: Campaign, name: str) -> list[str]:
    made, problems = grid(campaign, name), []
    try:
        pictures = draw(campaign, name)
    except ConfigError as error:
        pictures = {}
        problems.append(str(error))
    for file, content in pictures.items():
        write_atomically(campaign.home.path / file, content)
    figure = f"{name}.png" if f"{name}.png" in pictures else None
    text = markdown(campaign, made, figure) + retention_tables(campaign, name) + filter_tables(campaign, name)
    _write(campaign, f"{name}.md", text)
    _write(campaign, f"{name}.tex", latex(made))
    _write(campaign, f"{name}.csv", comma_separated(made))
    return problems


def _write_configs(campaign: Campaign, name: str) -> None:
    """One file a cell, with the first seed; the other seeds differ only in that line."""
    shape = preset(name)
    folder = campaign.home.path / "configs" / name
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for row in range(len(shape.rows)):
        for column in range(len(shape.columns)):
            job = campaign.job(Cell(name, row, column, campaign.seeds[0]))
            if job is not None:
                file = f"{_slug(shape.rows[row].name)}--{_slug(shape.columns[column].name)}.toml"
                text = f"# {shape.title}\n# seeds: {', '.join(map(str, campaign.seeds))}\n"
                write_atomically(folder / file, (text + job.config.toml()).encode())


def _index(campaign: Campaign) -> str:
    lines = [
        f"# Reproduction, scale `{campaign.defaults.name}`",
        "",
        f"{campaign.defaults.scale.about}. Made by `peermask reproduce`; what is not finished is shown as `-`.",
        "",
        "| experiment | runs finished | |",
        "| --- | ---: | --- |",
    ]
    for name in known():
        if (campaign.home.path / f"{name}.md").is_file():
            cells = [cell for cell in campaign.cells if cell.experiment == name]
            done = sum(campaign.outcome(cell) is not None for cell in cells)
            count = f"{done} of {len(cells)}" if cells else "see there"
            lines.append(f"| [{name}]({name}.md) | {count} | {preset(name).title} |")
    return "\n".join(lines) + "\n"


def _write(campaign: Campaign, file: str, text: str) -> None:
    write_atomically(campaign.home.path / file, text.encode())


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
