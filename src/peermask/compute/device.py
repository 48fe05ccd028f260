"""Devices that a run computes on, and the memory of this machine."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, reduce
from pathlib import Path

import torch
from torch import Tensor

from peermask.errors import RunError

MOST_PINNED = 2**30  # bytes of one copy
# Of glibc's malloc.h, and their values here: how many heaps there are for all threads, how much of one may be free at
# its end, how much is added to one at a time, and from which size on an array has memory of its own, which goes when it
# is freed.
M_ARENA_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -8, -1, -2, -3
KEEP_FREED = {M_ARENA_MAX: 1, M_TRIM_THRESHOLD: 2**30, M_TOP_PAD: 2**26, M_MMAP_THRESHOLD: 2**30}


def pick_device(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise RunError(f"device {name!r} is not one of cpu, cuda, cuda:N, auto")
    kind, _, index = name.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RunError(f"device {name!r} is not available: PyTorch finds no CUDA device; use --device cpu")
    if index and int(index) >= torch.cuda.device_count():
        raise RunError(f"device {name!r} does not exist; there are {torch.cuda.device_count()} CUDA devices")
    if kind == "cuda":
        try:
            import triton.tools.tensor_descriptor  # noqa: F401
        except ImportError:
            raise RunError(
                f"device {name!r} needs Triton 3.4 or later, which comes with PyTorch's CUDA builds; use --device cpu"
            ) from None
    return torch.device(name)


def made_current(device: torch.device) -> AbstractContextManager[None]:
    """Make a device the current GPU: Triton launches kernels there, wherever their tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def rows_on_cpu(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts, copied to the CPU.

    A GPU fills pinned memory many times faster than any other. PyTorch keeps what it has pinned for the next time and
    rounds it up to a power of two, so that very large copies go without.
    """
    if parts[0].device.type == "cpu":
        return torch.cat(list(parts))
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    dtype = reduce(torch.promote_types, (part.dtype for part in parts))  # votes: chunks count to as far as each must
    whole = _empty_on_cpu(shape, dtype)
    for rows, part in zip(whole.split([len(part) for part in parts]), parts, strict=True):
        rows.copy_(part, non_blocking=True)
    torch.cuda.current_stream(parts[0].device).synchronize()
    return whole


def _empty_on_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate pinned memory if possible: a machine may limit that."""
    if math.prod(shape) * dtype.itemsize <= MOST_PINNED:
        with suppress(RuntimeError):
            return torch.empty(shape, dtype=dtype, pin_memory=True)
    return torch.empty(shape, dtype=dtype)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """One torch thread per agent while agents run side by side.

    It is the fastest way to use several cores on small networks, and makes every agent's numbers independent of
    how many there are: an agent computes as it would alone on a device.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def keep_freed_memory() -> None:
    """Have glibc keep freed memory in this process; without glibc nothing changes.

    Every agent needs large arrays for a moment, of the same sizes in every round. Given back to the kernel and asked
    for again, each of their pages is cleared again, which takes longer than many operations on it.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for parameter, value in KEEP_FREED.items():
            libc.mallopt(parameter, value)


@contextmanager
def fast_float32() -> Iterator[None]:
    """Let matrix products on a GPU round their inputs to TF32, as torch's convolutions do there by default."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def enough_memory(device: torch.device) -> Iterator[None]:
    """Turn a full GPU, or a full machine, into one line that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"{device} has too little memory for so many agents at once; use a smaller --chunk, or --device cpu"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise RunError(
            "this machine has too little memory for this run; use fewer agents or a smaller model, "
            "see `peermask plan` for what it needs"
        ) from error


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
