"""Named things a config can choose (topologies, datasets, models, ...), each with typed options.

A thing registers itself with a name; what can be set about it is read off its signature, so one function or
one class is all that has to be written.

Packages can add their own: modules named by the entry point group `peermask.plugins` are imported when a
name is asked for that nothing has registered yet.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationInfo, create_model, field_validator

from peermask.errors import ConfigError, nearest

T = TypeVar("T", bound=Callable[..., Any])
GROUP = "peermask.plugins"  # of entry points


class Options(BaseModel):
    """Options of a registered thing: frozen, and unknown keys are an error.

    Examples:
        >>> import peermask
        >>> class Mine(peermask.Options):
        ...     lr: float = 0.1
        >>> Mine(lr=0.5)
        Mine(lr=0.5)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        wanted = cls.model_fields[info.field_name or ""].annotation
        if not isinstance(value, Mapping) and _contains_bool(value) and not _takes_bool(wanted):
            raise ValueError("must be a number, not true or false")
        return value


def _contains_bool(value: object) -> bool:
    return any(map(_contains_bool, value)) if isinstance(value, list | tuple) else isinstance(value, bool)


def _takes_bool(annotation: object) -> bool:
    return annotation is bool or any(map(_takes_bool, get_args(annotation)))


def _like(default: object) -> Any:
    """The type of an option without an annotation, by its default."""
    if isinstance(default, bool | str):
        return type(default)
    return int | float if isinstance(default, int | float) else Any


@dataclass(frozen=True)
class Entry(Generic[T]):
    name: str
    make: T
    origin: str  # the file that registered it; `__main__` for a notebook

    @property
    def summary(self) -> str:
        return inspect.cleandoc(self.make.__doc__ or "").split("\n")[0]  # not that of a base class

    @cached_property
    def options(self) -> type[Options]:
        """The parameters of a function or class that are keyword-only or have a default, or a class's own `Options`."""
        own = getattr(self.make, "Options", None)
        if isinstance(own, type) and issubclass(own, Options):
            return own
        function = inspect.getattr_static(self.make, "__init__") if isinstance(self.make, type) else self.make
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise ConfigError(
                f"the options of {self.name!r} ({self.origin}) have annotations that fail: {error}"
            ) from error
        fields: dict[str, Any] = {
            p.name: (hints.get(p.name, _like(p.default)), ... if p.default is p.empty else p.default)
            for p in inspect.signature(self.make).parameters.values()
            if p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty)
        }
        return create_model(f"{self.name} options", __base__=Options, **fields)


class Registry(Generic[T]):
    origins: ClassVar[set[str]] = set()  # all files that registered anything, of any kind

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Again from the same file, as when a cell of a notebook is run twice, the later replaces the earlier."""
        if not name.strip(".") or "/" in name or "\\" in name:
            raise ConfigError(f"{self.kind} {name!r}: folders have this name, too; give it letters, digits and hyphens")
        caller = sys._getframe(1).f_globals
        origin = str(caller.get("__file__") or caller["__name__"])

        def add(make: T) -> T:
            before = self._entries.get(name)
            if before is not None and before.origin != origin:
                raise ConfigError(
                    f"{self.kind} {name!r} is registered in {before.origin} and again in {origin}; rename one of them"
                )
            self._entries[name] = Entry(name, make, origin)
            self.origins.add(origin)
            return make

        return add

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self._entries:
            problems = _import_installed()
            if name not in self._entries:
                failed = "".join(f"; {problem}" for problem in problems)
                raise ConfigError(f"unknown {self.kind} {name!r}; {nearest(name, self._entries)}{failed}")
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))


@cache
def _import_installed() -> tuple[str, ...]:
    """Import the plug-ins of installed packages, once; a line for each that fails."""
    problems = []
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            problems.append(f"plug-in {point.value} cannot be imported: {type(error).__name__}: {error}")
    return tuple(problems)
