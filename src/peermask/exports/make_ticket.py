"""From an agent's model to its ticket; only models that are a mask over the frozen weights have one."""

from __future__ import annotations

from math import isnan

import torch

from peermask.data.dataset import Dataset
from peermask.errors import ExportError
from peermask.experiment.module import model_options
from peermask.exports.personal import Personal
from peermask.exports.ticket import About, Architecture, Frozen, Header, Inputs, Ticket
from peermask.masks.masker import Masker


def make_ticket(personal: Personal) -> Ticket:
    experiment, layout = personal.experiment, personal.layout
    keep = experiment.agents.keep[personal.agent]  # [L]
    mask = personal.params[: layout.weights] != 0  # [P_w]
    masker = Masker(layout, experiment.frozen.values, experiment.config.mask)
    # Rebuilding is the test: what a ticket would give must be what the agent has, to the bit.
    if not torch.equal(masker.model(mask[None], keep[None])[0], personal.params):
        raise ExportError(
            f"agent {personal.agent} of {personal.result.root} has weights trained by "
            f"{experiment.config.algorithm.name}, not a mask over frozen ones, so a ticket cannot hold them; "
            "export to .safetensors or .onnx"
        )
    return Ticket.of(_header(personal, keep.tolist()), mask.numpy(), layout.sizes)


def _header(personal: Personal, keep: list[int]) -> Header:
    experiment, about = personal.experiment, personal.about
    config, dataset = experiment.config, experiment.dataset
    return Header(
        architecture=architecture_of(personal),
        classes=tuple(name[:200] for name in dataset.classes),
        frozen=Frozen(
            init=config.frozen.init,
            bias_init=config.frozen.bias_init,
            seed=config.seed,
            checksum=experiment.frozen.checksum,
            source=config.frozen.source,
            drawn=config.frozen.drawn or (),
        ),
        inputs=inputs_of(dataset),
        rescale=config.mask.rescale,
        keep=tuple(keep),
        readout=personal.result.readout,
        about=About(
            agent=personal.agent,
            round=personal.round,
            config_hash=personal.result.manifest["config_hash"],
            algorithm=config.algorithm.name,
            dataset=dataset.name,
            labels=about.labels,
            retention=about.retention,
            density=float((personal.params[: personal.layout.weights] != 0).float().mean()),
            test_accuracy=None if isnan(about.test_accuracy) else about.test_accuracy,
        ),
    )


def architecture_of(personal: Personal) -> Architecture:
    config, dataset = personal.experiment.config, personal.experiment.dataset
    model = {} if personal.own_module else model_options(config, dataset)
    return Architecture(
        name=None if personal.own_module else config.model.name,
        options={key: value for key, value in model.items() if value is not None},
        shape=dataset.shape,
        layers=config.mask.layers,
    )


def inputs_of(dataset: Dataset) -> Inputs:
    return Inputs(
        dtype=str(dataset.train.inputs.dtype).removeprefix("torch."),
        normalisation=dataset.normalisation,
        target_scale=dataset.target_scale,
        task=dataset.task,
        vocabulary=dataset.vocabulary,
    )
