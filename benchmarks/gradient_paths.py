"""Forward and backward of all agents by other means than ours, for `benchmarks.round_time --others`.

Grouped: agents as groups of cuDNN's convolutions, layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from peermask.compute.network import Batch, Network
from peermask.compute.stacked import StackedChain
from peermask.compute.traced import plan_traced

Timer = Callable[[Callable[[], object]], float]


def time_others(network: Network, params: Tensor, batch: Batch, seconds: Timer) -> None:
    """Prints a row for each: params [A, P]."""
    print("\nforward and backward alone")
    for name, gradient in _ways(network, params, batch):
        try:
            print(f"    {name:28s}{seconds(gradient) * 1e3:8.2f} ms")
        except Exception as error:  # of a compiler, or for want of memory: the other rows still count
            print(f"    {name:28s}  failed: {type(error).__name__}")
        torch.cuda.empty_cache()


def _ways(network: Network, params: Tensor, batch: Batch) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "ours", lambda: network.gradient(params, batch)
    yield "vectorised (vmap)", lambda: replace(network, stack=None).gradient(params, batch)
    grouped = _grouped(network, batch)
    if grouped is None:
        return
    for half in (False, True):
        digits = "fp16" if half else "TF32"
        yield f"grouped cuDNN, {digits}", partial(_gradient, network, grouped, params, batch, half)
        if isinstance(network.stack, StackedChain):  # steps that were traced are no code for a compiler
            compiled = torch.compile(grouped)
            yield f"the same compiled, {digits}", partial(_gradient, network, compiled, params, batch, half)


def _grouped(network: Network, batch: Batch) -> Callable[[dict[str, Tensor], Tensor], Tensor] | None:
    if isinstance(network.stack, StackedChain):
        stages = network.stack.stages

        def chain(params: dict[str, Tensor], inputs: Tensor) -> Tensor:
            x = inputs.permute(0, 1, 3, 4, 2)  # [A, B, H, W, C]
            flat = False
            for stage in stages:
                weight, bias = params[stage.weight], None if stage.bias is None else params[stage.bias]
                if stage.block is not None:
                    x = stage.block(x, weight, bias)
                    continue
                x = x if flat else x.permute(0, 1, 4, 2, 3).flatten(2)
                flat = True
                x = x @ weight.transpose(1, 2)
                x = x if bias is None else x + bias[:, None]
                x = {"none": lambda x: x, "elu": F.elu, "relu": F.relu}[stage.activation](x)
            return x

        return chain
    stack = plan_traced(network.module, batch.inputs[0, :2])
    return None if stack is None else replace(stack, kernels=False)


def _gradient(
    network: Network,
    stack: Callable[[dict[str, Tensor], Tensor], Tensor],
    params: Tensor,
    batch: Batch,
    half: bool,
) -> tuple[Tensor, ...]:
    leaves = {name: view.requires_grad_() for name, view in network.layout.unflatten(params.detach()).items()}
    with torch.autocast("cuda", torch.float16) if half else nullcontext():
        outputs = stack(leaves, batch.inputs)  # [A, B, O]
    losses = network.loss(outputs.flatten(0, 1).float(), batch.targets.flatten(0, 1)).view(outputs.shape[:2])
    return torch.autograd.grad(losses.mean(1).sum(), list(leaves.values()))
