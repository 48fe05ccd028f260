"""A state as named tensors, and back: what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def tensors_of(state: Any) -> dict[str, Tensor]:
    """By name; those of a state within the state have its name before theirs: `personal.scores`."""
    named: dict[str, Tensor] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if is_dataclass(value):
            named |= {f"{field.name}.{name}": tensor for name, tensor in tensors_of(value).items()}
        elif value is not None:
            named[field.name] = value
    return named


def with_tensors(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state with those of `tensors_of` replaced."""
    changes: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if "." not in name}
    for outer in {name.split(".", 1)[0] for name in tensors if "." in name}:
        inner = {name.split(".", 1)[1]: tensor for name, tensor in tensors.items() if name.startswith(outer + ".")}
        changes[outer] = with_tensors(getattr(state, outer), inner)
    return replace(state, **changes)
