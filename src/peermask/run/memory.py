"""Memory: how many agents fit on a device at once, and whether anything fits into this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from peermask.errors import RunError
from peermask.models.layout import Layout
from peermask.run.evaluate import AT_ONCE

STATE_COPIES = 8  # float32 vectors of P an agent needs at the peak of a round: scores, gradients, model, sort keys
RESTING = 12  # bytes per parameter that an agent holds while others are computed: its state, its last two messages
FUSED = 2  # times what modules give, of the memory of a pass through fused kernels; measured on AlexNet: 1.2
GENERAL = 5  # of any other pass, which also keeps what lies inside a module; measured on AlexNet: 4.4


def chunk_that_fits(agents: int, layout: Layout, activations: int, free: int) -> int:
    """Choose how many agents to stack, as evenly as possible; an agent's passes need `activations` bytes."""
    each = STATE_COPIES * 4 * layout.total + activations
    room = int(0.8 * free) - RESTING * layout.total * agents
    most = max(1, min(agents, room // each))
    chunks = -(-agents // most)
    return -(-agents // chunks)


def activation_bytes(module: torch.nn.Module, blank: torch.Tensor, batch: int, *, fused: bool) -> int:
    """Bytes that an agent's training step saves for its backward pass, or its evaluation's widest layer if larger.

    The module is tried on one input, `blank`, on the CPU.
    """
    outputs = [0]

    def count(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append(output.numel() * output.element_size())

    hooks = [child.register_forward_hook(count) for child in module.modules() if not list(child.children())]
    try:
        with torch.no_grad():
            module(blank)
    finally:
        for hook in hooks:
            hook.remove()
    return (FUSED if fused else GENERAL) * max(batch * sum(outputs), AT_ONCE * max(outputs))


def check_room(needed: int, what: str, remedy: str) -> None:
    """Check memory before anything is allocated: a machine that runs out of it kills processes."""
    free = free_memory()
    if needed > free:
        raise RunError(f"{what} about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; {remedy}")


def free_memory() -> int:
    """Bytes that this process can still have: of the machine, of its container, and by its own limit."""
    page = os.sysconf("SC_PAGE_SIZE")
    bounds = [page * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        bounds.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        bounds.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            bounds.append(limit - page * int(Path("/proc/self/statm").read_text().split()[0]))
    return min(bounds)


class PeakMemory:
    """The most memory that this process takes within a `with` block, in `bytes`.

    Linux can forget an earlier peak; elsewhere it is the peak since the process started."""

    bytes = 0

    def __enter__(self) -> PeakMemory:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # see proc(5): only the mark of the peak is reset
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, StopIteration):
            lines = Path("/proc/self/status").read_text().splitlines()
            self.bytes = 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
            return
        with suppress(ImportError):
            import resource  # not on Windows

            self.bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, which has no /proc
