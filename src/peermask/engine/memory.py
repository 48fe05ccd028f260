"""How many agents fit on a device at once."""

from __future__ import annotations

import torch

from peermask.models.layout import Layout

STATE_COPIES = 8  # float32 vectors of P an agent needs at the peak of a round: scores, gradients, model, sort keys


def chunk_that_fits(agents: int, layout: Layout, activations: int, free: int) -> int:
    """Agents to stack, as evenly as possible: `activations` bytes an agent's forward and backward pass keeps."""
    each = STATE_COPIES * 4 * layout.total + activations
    most = max(1, min(agents, int(0.8 * free) // each))
    chunks = -(-agents // most)
    return -(-agents // chunks)


def activation_bytes(module: torch.nn.Module, shape: tuple[int, ...], batch: int, device: torch.device) -> int:
    """What one agent's batch keeps for its backward pass: every module's output, twice over for its gradient."""
    total = 0

    def count(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, torch.Tensor):
            total += output.numel() * output.element_size()

    hooks = [child.register_forward_hook(count) for child in module.modules() if not list(child.children())]
    try:
        with torch.no_grad():
            module(torch.zeros(1, *shape, device=device))
    finally:
        for hook in hooks:
            hook.remove()
    return 2 * total * batch
