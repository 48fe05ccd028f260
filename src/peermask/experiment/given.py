"""Given weights: where a config says `frozen.from`, they are frozen unchanged, and notes say what was overridden."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from peermask.errors import ConfigError
from peermask.experiment.config import ExperimentConfig
from peermask.experiment.sections import FrozenOptions
from peermask.models.frozen import FrozenWeights, frozen_weights, own_weights
from peermask.models.layout import turn_off_dropout
from peermask.models.network import Network
from peermask.models.pretrained import fold_batch_norms, put_weights, read_weights

MODULE = "module"


def with_weights(
    module: nn.Module, config: ExperimentConfig, *, given: bool
) -> tuple[nn.Module, bool, tuple[str, ...]]:
    """The module with the weights that a config asks for, whether those are given, and notes for the user."""
    frozen = config.frozen
    if frozen.source is None:
        if frozen.drawn is not None:
            raise ConfigError("frozen.drawn is for given weights only; set frozen.from, or delete it")
        lost = f"the module's own weights are not used: frozen.init = {frozen.init!r} draws others"
        return module, False, (f"{lost}; frozen.from = {MODULE!r} would keep them",) if given else ()
    prepared, notes = prepare(module, frozen.source, frozen.drawn or (), given=given)
    if frozen.init != FrozenOptions().init and not frozen.drawn:
        notes.append(f"frozen.from = {frozen.source!r} is used; frozen.init = {frozen.init!r} is not")
    return prepared, True, tuple(notes)


def prepare(module: nn.Module, source: str, drawn: Sequence[str] = (), *, given: bool) -> tuple[nn.Module, list[str]]:
    """Put the weights of a file into a module, unless they are its own; fold its batch norms, turn off its dropout."""
    if source != MODULE:
        put_weights(module, read_weights(Path(source)), f"frozen.from = {source!r}", drawn)
    elif not given:
        raise ConfigError(f"frozen.from = {MODULE!r} keeps the weights of a module given in Python, and none was given")
    notes = []
    norms = fold_batch_norms(module)
    if any(norms.values()):
        notes.append(
            f"{norms['folded']} batch norms were folded into the layers before them; "
            f"{norms['alone']} became a fixed factor and summand for each channel"
        )
    if count := turn_off_dropout(module):
        notes.append(f"{count} dropouts were turned off")
    return module, notes


def freeze(network: Network, config: ExperimentConfig, *, given: bool) -> FrozenWeights:
    """The frozen weights of a network: drawn, or its own but for those that are to be drawn."""
    frozen, layout = config.frozen, network.layout
    if not given:
        return frozen_weights(layout, frozen.init, frozen.bias_init, config.seed)
    return own_weights(network.module, layout, frozen.init, frozen.bias_init, config.seed, frozen.drawn or ())
