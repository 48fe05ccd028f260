"""A line for people that programs can take apart: what an agent says, with a name for the event and its fields."""

from __future__ import annotations

from typing import Literal

Level = Literal["info", "warning", "error"]


class Line(str):
    """A text line with fields, which `--log json` writes as well."""

    event: str
    level: Level
    fields: dict[str, object]

    def __new__(cls, text: str, event: str, level: Level = "info", **fields: object) -> Line:
        line = super().__new__(cls, text)
        line.event, line.level, line.fields = event, level, fields
        return line

    @classmethod
    def of(cls, text: str) -> Line:
        return text if isinstance(text, Line) else cls(text, "note")
