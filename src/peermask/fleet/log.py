"""Log lines of an agent: a text for people, with a name of the event and its fields for programs."""

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
