"""A module as a list of steps, from tracing it; None where that fails, or where a step is unknown.

Samples of all agents go through a traced module in one batch. So an operation without parameters is called unchanged if
it treats samples independently, which is tested: two samples together must give at every step what each gives alone.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from peermask.compute.operations import knows
from peermask.models.layout import ChannelAffine

Kind = Literal["input", "constant", "layer", "norm", "add", "relu", "same", "call", "output"]
_ADD = (operator.add, operator.iadd, torch.add, "add")
_RELU = (F.relu, torch.relu, "relu")
_ARITHMETIC = (*_ADD, operator.sub, operator.mul, operator.truediv, torch.sub, torch.mul, torch.div)


@dataclass(frozen=True)
class Step:
    """One operation of the module and its inputs. A norm may end in an addition and ReLU."""

    node: fx.Node  # where its result is known by
    kind: Kind
    inputs: tuple[fx.Node, ...]
    layer: nn.Module | None = None
    name: str = ""  # of the layer, or of a constant
    relu: bool = False
    shapes: tuple[torch.Size, ...] = ()  # of one sample, each input's


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is ChannelAffine or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module, samples: Tensor) -> tuple[Step, ...] | None:
    """`samples`: two that differ."""
    try:
        graph = _Tracer().trace(module)
        traced = fx.GraphModule(module, graph)
        together, *alone = (_Recorder.run_all(traced, own) for own in (samples, samples[:1], samples[1:]))
    except Exception:  # a user's module may raise anything when it is called with unexpected arguments
        return None
    varied = _varied(graph)
    if not all(_one_by_one(together[node], [own[node] for own in alone]) for node in varied):
        return None
    steps = []
    for node in graph.nodes:
        step = _step(module, node)
        if step is None:
            return None
        shapes = [together[own].shape[1:] if isinstance(together[own], Tensor) else None for own in step.inputs]
        steps.append(replace(step, shapes=tuple(shape for shape in shapes if shape is not None)))
    return _fused(steps)


def uses(steps: tuple[Step, ...]) -> Counter[fx.Node]:
    """Count how often each result is needed."""
    return Counter(node for step in steps for node in step.inputs)


class _Recorder(fx.Interpreter):
    """Recorder of every value on the way."""

    @classmethod
    def run_all(cls, traced: fx.GraphModule, samples: Tensor) -> dict[fx.Node, Any]:
        recorder = cls(traced, garbage_collect_values=False)
        with torch.no_grad():
            recorder.run(samples)
        return recorder.env

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        return (
            result.clone() if isinstance(result, Tensor) and n.op != "get_attr" else result
        )  # later steps may change it


def _varied(graph: fx.Graph) -> list[fx.Node]:
    """Nodes that depend on the samples."""
    varied: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "placeholder" or any(source in varied for source in node.all_input_nodes):
            varied[node] = None
    return [node for node in varied if node.op != "output"]


def _one_by_one(together: Any, alone: list[Any]) -> bool:
    if isinstance(together, tuple | list) and not isinstance(together, torch.Size):
        return all(_one_by_one(part, [one[place] for one in alone]) for place, part in enumerate(together))
    if not isinstance(together, Tensor):
        return True  # a size, which matters only if a tensor depends on it
    if together.dim() == 0 or len(together) != len(alone) or any(one.shape[:1] != (1,) for one in alone):
        return False
    joined = torch.cat(alone)
    if joined.shape != together.shape:
        return False
    if not together.is_floating_point():
        return torch.equal(joined, together)
    return torch.allclose(joined, together, rtol=1e-3, atol=1e-4 * float(together.abs().max()))


def _step(module: nn.Module, node: fx.Node) -> Step | None:
    inputs = _inputs(node)
    of_parameters = any(_is_parameter(module, source) for source in inputs)
    if _changes_its_input(module, node) and len(inputs[0].users) > 1:
        return None
    match node.op:
        case "placeholder":
            return Step(node, "input", ()) if not node.args else None
        case "output":
            return Step(node, "output", inputs) if not of_parameters and len(inputs) == 1 else None
        case "get_attr":
            named = _names(module) | {name for name, _ in module.named_buffers()}
            return Step(node, "constant", (), name=str(node.target)) if node.target in named else None
        case "call_module":
            layer = module.get_submodule(str(node.target))
            if of_parameters or len(inputs) != 1 or node.kwargs:
                return None
            step = _of_layer(layer, node, inputs)
            return step if step is None or not step.name or f"{step.name}.weight" in _names(module) else None
    if of_parameters and (node.target not in _ARITHMETIC or node.kwargs or len(inputs) != 2):
        return None
    plain = not node.kwargs and not of_parameters
    if node.target in _ADD and plain and len(inputs) == len(node.args) == 2:
        return Step(node, "add", inputs)
    if node.target in _RELU and len(inputs) == 1:
        return Step(node, "relu", inputs)
    return Step(node, "call", inputs)


def _of_layer(layer: nn.Module, node: fx.Node, inputs: tuple[fx.Node, ...]) -> Step | None:
    if isinstance(layer, nn.Identity | nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return Step(node, "same", inputs)
    if type(layer) is nn.ReLU:
        return Step(node, "relu", inputs)
    parameters = dict(layer.named_parameters())
    if not parameters:
        return None if any(True for _ in layer.buffers()) else Step(node, "call", inputs, layer)
    if not knows(layer) or "weight" not in parameters:
        return None
    return Step(node, "norm" if type(layer) is nn.GroupNorm else "layer", inputs, layer, str(node.target))


def _names(module: nn.Module) -> set[str]:
    """Names of parameters as in a layout: the first for a layer that is used twice."""
    return {name for name, _ in module.named_parameters()}


def _inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """Input nodes in the order of arguments, with repetitions."""
    inputs: list[fx.Node] = []

    def note(source: fx.Node) -> fx.Node:
        inputs.append(source)
        return source

    fx.node.map_arg((node.args, node.kwargs), note)
    return tuple(inputs)


def _is_parameter(module: nn.Module, node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(operator.attrgetter(str(node.target))(module), nn.Parameter)


def _changes_its_input(module: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(str(node.target)), "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_")
    written = isinstance(node.target, Callable) and node.target in (operator.iadd, operator.imul, operator.isub)  # type: ignore[arg-type]
    return node.op == "call_function" and (written or bool(node.kwargs.get("inplace", False)))


def _fused(steps: list[Step]) -> tuple[Step, ...]:
    """Norms with the addition and the ReLU after them, where nothing else needs what is in between."""
    needed = uses(tuple(steps))
    by_node = {step.node: step for step in steps}
    for step in list(steps):
        if step.kind == "add":
            norm_node = next(
                (n for n in step.inputs if by_node[n].kind == "norm" and _is_last(by_node[n], needed)), None
            )
            other = [n for n in step.inputs if n is not norm_node]
            if norm_node is not None and len(other) == 1 and step.shapes[0] == step.shapes[1]:
                norm = by_node.pop(norm_node)
                joined = (*norm.inputs, *other)
                by_node[step.node] = replace(
                    norm, node=step.node, inputs=joined, shapes=(norm.shapes[0], step.shapes[0])
                )
        elif step.kind == "relu":
            before = by_node[step.inputs[0]]
            if before.kind in ("norm", "add") and needed[before.node] == 1 and not before.relu:
                by_node.pop(before.node)
                by_node[step.node] = replace(before, node=step.node, relu=True)
    return tuple(by_node[step.node] for step in steps if step.node in by_node)


def _is_last(norm: Step, needed: Counter[fx.Node]) -> bool:
    return needed[norm.node] == 1 and len(norm.inputs) == 1 and not norm.relu
