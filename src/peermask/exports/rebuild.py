"""From a ticket back to an ordinary module: the seed draws the frozen weights, the mask keeps some of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from peermask.compute.network import blank
from peermask.data.normalisation import FromRaw
from peermask.errors import ConfigError, ExportError, ModelError
from peermask.exports.ticket import Architecture, Frozen, Ticket, masked_layers, read_ticket
from peermask.files import as_path
from peermask.masks.masker import Masker, MaskOptions
from peermask.models.architectures import models
from peermask.models.frozen import frozen_weights, own_weights
from peermask.models.layout import Layout, find_layout
from peermask.models.outputs import with_readout
from peermask.run.assemble import with_params
from peermask.run.build import MODULE, prepare

MAX_PARAMETERS = 1 << 26  # a quarter of a gigabyte in float32; a small file must not ask for more
MAX_ACTIVATION = 1 << 27  # values between two layers, for one image
MAX_OPTION_ITEMS = 64


def load_ticket(path: Path | str, module: nn.Module | None = None, weights: Path | str | None = None) -> nn.Module:
    """Load the personal model of an agent from a ticket file.

    Args:
        path: The file that `peermask export RUN --agent I --to FILE.ticket` wrote.
        module: The network, if the run was given one of your own. It is copied.
        weights: The file that `frozen.from` named, if the run was over given weights and it has moved.

    Returns:
        A module in eval mode, whose outputs equal the agent's bit for bit. It takes raw inputs, as the dataset has
        them.

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
    return rebuild(read_ticket(as_path(path, "path")), str(path), module, weights)


def rebuild(
    ticket: Ticket, name: str = "ticket", module: nn.Module | None = None, weights: Path | str | None = None
) -> nn.Module:
    """Build the model; all claims of a ticket are checked on tensors without storage before memory is allocated."""
    header = ticket.header
    tokens = header.inputs.dtype == "int64"
    empty = (
        copy.deepcopy(module).cpu()
        if module is not None
        else named_module(header.architecture, len(header.classes), name, tokens=tokens)
    )
    try:
        if header.frozen.source is not None:
            empty = _given(empty, header.frozen, weights, name, given=module is not None)
        layout = find_layout(empty, header.architecture.layers)
    except (ModelError, ConfigError) as error:
        raise ExportError(f"{name}: {error}") from error
    _check_count(layout.total, name)
    mask = torch.from_numpy(masked_layers(ticket, layout.sizes, name))  # [P_w]
    frozen = _frozen(ticket, layout, name, empty if header.frozen.source is not None else None)
    masker = Masker(layout, frozen, MaskOptions(rescale=header.rescale))
    params = masker.model(mask[None], torch.tensor([header.keep]))[0]  # [P]
    if module is None and header.frozen.source is None:
        empty = empty.to_empty(device="cpu")
    network = with_params(empty, layout, params)
    own = with_readout(network, header.readout, header.about.labels, len(header.classes))
    dimensions = len(header.architecture.shape)
    return FromRaw(own, header.inputs.normalisation, dimensions, header.inputs.target_scale).eval()


def _given(module: nn.Module, recipe: Frozen, weights: Path | str | None, name: str, *, given: bool) -> nn.Module:
    """A module with the weights that its agent had: its own, or those of a file that the user names."""
    if recipe.source == MODULE:
        return prepare(module, MODULE, recipe.drawn, given=given)[0]
    if weights is None:
        raise ExportError(
            f"{name} is a mask over the weights of {recipe.source!r}; give that file: weights=..., or --weights"
        )
    _check_count(sum(parameter.numel() for parameter in module.parameters()), name)
    there = module if given else module.to_empty(device="cpu")
    return prepare(there, str(weights), recipe.drawn, given=given)[0]


def _check_count(count: int, name: str) -> None:
    if count > MAX_PARAMETERS:
        raise ExportError(f"{name} asks for {count:,} parameters; at most {MAX_PARAMETERS:,} are built")


def named_module(architecture: Architecture, classes: int, name: str, *, tokens: bool) -> nn.Module:
    """The model on the meta device: only shapes, so of any size."""
    if architecture.name is None:
        raise ExportError(
            f"{name} is of a network that was given from Python; pass it: peermask.load_ticket(path, module=...)"
        )
    try:
        entry = models[architecture.name]
        options = dict(entry.options.model_validate(_bounded(architecture.options)))
        with torch.device("meta"):
            module: nn.Module = entry.make(architecture.shape, classes, **options)
            out, widest = _try_out(module.eval(), blank(architecture.shape, tokens=tokens))
    except ValidationError as error:
        raise ExportError(f"{name}: options of {architecture.name!r}: {error.errors()[0]['msg']}") from None
    except ConfigError as error:
        raise ExportError(f"{name}: {error}; a model of your own: --import the file that registers it") from None
    except (RuntimeError, ValueError) as error:
        size = "x".join(map(str, architecture.shape))
        reason = str(error).splitlines()[0]
        raise ExportError(f"{name}: {architecture.name!r} does not fit inputs of {size}: {reason}") from None
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


def _frozen(ticket: Ticket, layout: Layout, name: str, given: nn.Module | None) -> Tensor:
    """Frozen weights drawn from the seed, or those of a module that has them."""
    header, recipe = ticket.header, ticket.header.frozen
    regressed = len(header.classes) if header.inputs.task == "regression" else 0
    how = (layout, recipe.init, recipe.bias_init, recipe.seed)
    try:
        if given is None:
            frozen = frozen_weights(*how, regressed=regressed)
        else:
            frozen = own_weights(given, *how, recipe.drawn, regressed=regressed)
    except (ConfigError, ModelError) as error:
        raise ExportError(f"{name}: {error}") from None
    if frozen.checksum != recipe.checksum:
        raise ExportError(
            f"{name} was made with frozen weights {recipe.checksum}, here "
            f"{'the seed gives' if given is None else 'those given are'} {frozen.checksum}: "
            "another network, or another version of this program"
        )
    return frozen.values  # [P]
