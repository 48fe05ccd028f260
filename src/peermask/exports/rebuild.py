"""From a ticket back to an ordinary module: the seed draws the frozen weights, the mask keeps some of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from peermask.errors import ConfigError, ExportError, ModelError
from peermask.exports.personal import with_params
from peermask.exports.ticket import Architecture, Ticket, masked_layers, read_ticket
from peermask.masks.budget import MaskOptions
from peermask.masks.masker import Masker
from peermask.models.architectures import models
from peermask.models.frozen import frozen_weights
from peermask.models.layout import Layout, find_layout
from peermask.models.readout import with_readout

MAX_PARAMETERS = 1 << 26  # a quarter of a gigabyte in float32; a small file must not ask for more
MAX_ACTIVATION = 1 << 27  # values between two layers, for one image
MAX_OPTION_ITEMS = 64


def load_ticket(path: Path | str, module: nn.Module | None = None) -> nn.Module:
    """Load the personal model of an agent from a ticket file.

    Args:
        path: The file that `peermask export RUN --agent I --to FILE.ticket` wrote.
        module: The network, if the run was given one of your own. It is copied.

    Returns:
        A module in eval mode, whose outputs equal the agent's bit for bit.

    Raises:
        ExportError: The file is not a ticket, is damaged, or does not fit the network.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> exported = peermask.export(result, agent=3, to="agent3.ticket")
        >>> peermask.load_ticket("agent3.ticket").training
        False
    """
    return rebuild(read_ticket(path), str(path), module)


def rebuild(ticket: Ticket, name: str = "ticket", module: nn.Module | None = None) -> nn.Module:
    """Everything a ticket claims is checked on tensors without storage before anything is allocated."""
    header = ticket.header
    empty = _own(module) if module is not None else _named(header.architecture, len(header.classes), name)
    try:
        layout = find_layout(empty, header.architecture.layers)
    except ModelError as error:
        raise ExportError(f"{name}: {error}") from error
    if layout.total > MAX_PARAMETERS:
        raise ExportError(f"{name} asks for {layout.total:,} parameters; at most {MAX_PARAMETERS:,} are built")
    mask = torch.from_numpy(masked_layers(ticket, layout.sizes, name))  # [P_w]
    frozen = _frozen(ticket, layout, name)
    masker = Masker(layout, frozen, MaskOptions(rescale=header.rescale))
    params = masker.model(mask[None], torch.tensor([header.keep]))[0]  # [P]
    if module is None:
        empty = empty.to_empty(device="cpu")
    network = with_params(empty, layout, params)
    return with_readout(network, header.readout, header.about.labels, len(header.classes))


def _own(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).cpu()


def _named(architecture: Architecture, classes: int, name: str) -> nn.Module:
    """The model on the meta device: shapes only, whatever its size."""
    if architecture.name is None:
        raise ExportError(
            f"{name} is of a network that was given from Python; pass it: peermask.load_ticket(path, module=...)"
        )
    try:
        entry = models[architecture.name]
        options = dict(entry.options.model_validate(_bounded(architecture.options)))
        with torch.device("meta"):
            module: nn.Module = entry.make(architecture.shape, classes, **options)
            out, widest = _try_out(module.eval(), torch.zeros(1, *architecture.shape))
    except ValidationError as error:
        raise ExportError(f"{name}: options of {architecture.name!r}: {error.errors()[0]['msg']}") from None
    except ConfigError as error:
        raise ExportError(f"{name}: {error}") from None
    except (RuntimeError, ValueError) as error:
        size = "x".join(map(str, architecture.shape))
        reason = str(error).splitlines()[0]
        raise ExportError(f"{name}: {architecture.name!r} does not fit images of {size}: {reason}") from None
    if widest > MAX_ACTIVATION:
        raise ExportError(f"{name} needs {widest:,} values between two layers; at most {MAX_ACTIVATION:,} are held")
    if tuple(out.shape) != (1, classes):
        raise ExportError(f"{name}: {architecture.name!r} gives {out.shape[-1]} outputs for {classes} classes")
    return module


def _try_out(module: nn.Module, image: Tensor) -> tuple[Tensor, int]:
    """The output of a module without storage, and the most values that pass between two of its layers."""
    widest = 0

    def look(_layer: nn.Module, _inputs: object, output: object) -> None:
        nonlocal widest
        if isinstance(output, Tensor):
            widest = max(widest, output.numel())

    hooks = [child.register_forward_hook(look) for child in module.modules()]
    try:
        return module(image), widest
    finally:
        for hook in hooks:
            hook.remove()


def _bounded(options: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in options.items():
        if isinstance(value, list) and len(value) > MAX_OPTION_ITEMS:
            raise ConfigError(f"option {key} has {len(value)} items; allowed: {MAX_OPTION_ITEMS}")
    return dict(options)


def _frozen(ticket: Ticket, layout: Layout, name: str) -> Tensor:
    recipe = ticket.header.frozen
    try:
        frozen = frozen_weights(layout, recipe.init, recipe.bias_init, recipe.seed)
    except ConfigError as error:
        raise ExportError(f"{name}: {error}") from None
    if frozen.checksum != recipe.checksum:
        raise ExportError(
            f"{name} was made with frozen weights {recipe.checksum}, here the seed gives {frozen.checksum}: "
            "another network, or another version of this program"
        )
    return frozen.values  # [P]
