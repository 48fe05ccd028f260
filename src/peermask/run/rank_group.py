"""The ranks of a run, and all that passes between them.

CPU tensors travel by gloo, those of a GPU by NCCL, or over the CPU by gloo where ranks share a GPU. All ranks call the
same functions in the same order. If one of them is gone, each call raises `LostRankError`, which names it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import reduce
from traceback import clear_frames
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from peermask.compute.device import pick_device
from peermask.errors import PeermaskError, RunError
from peermask.run.rank_exchange import DTYPES, divide, pack, packed_width, unpack
from peermask.run.rendezvous import Control, Member, Place, Waiting, choose_address, meet, rank_from_env

Backend = Literal["auto", "gloo", "nccl"]
PATIENCE = timedelta(minutes=30)  # for a rank that is alive and busy, as with a slow disk


class Ranks:
    """Shapes: N agents, of which A are here."""

    def __init__(self, place: Place, device: torch.device, control: Control) -> None:
        self.place, self.rank, self.size, self.device = place, place.rank, place.size, device
        self.nccl, self.address = False, ""
        self.control, self.members = control, control.members
        devices = [(member.host, member.device) for member in self.members]
        self.sharing = devices.count(devices[place.rank])  # ranks that have this device, itself included

    def connect(self, backend: Backend) -> None:
        self.nccl = _use_nccl(backend, self.members)
        if self.nccl:
            torch.cuda.set_device(self.device)
        with self._connected():
            self.address = choose_address(self.members[self.rank], self.members)
            self.control.store.set(f"ready/{self.rank}", "")
            while not self.control.store.check([f"ready/{rank}" for rank in range(self.size)]):
                self.control.check()  # gloo would wait for a rank that has left
            gloo = _register_gloo(self.address)
            dist.init_process_group(
                f"cpu:{gloo},cuda:nccl" if self.nccl else gloo,
                store=self.control.store,
                rank=self.rank,
                world_size=self.size,
                timeout=PATIENCE,
            )
            if self.nccl:  # all must take part in the first call, and in a round some may have nothing to send
                dist.all_reduce(torch.zeros(1, device=self.device))

    @property
    def first(self) -> bool:
        """Whether this rank writes the run."""
        return self.rank == 0

    def shards(self, agents: int) -> list[slice]:
        return divide(agents, self.size)

    def any(self, wanted: bool) -> bool:
        """Whether any rank says so."""
        flag = torch.tensor([int(wanted)])
        with self._connected():
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def all_gather(self, rows: Tensor, agents: int) -> Tensor:
        """[A, ...] of each rank -> [N, ...] in every rank."""
        most = -(-agents // self.size)
        own = rows.new_zeros(most, *rows.shape[1:])
        own[: len(rows)] = rows
        sent = self._to_send(own.reshape(-1).view(torch.uint8))
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with self._connected():
            dist.all_gather(parts, sent)
        counts = [rows.stop - rows.start for rows in self.shards(agents)]
        whole = [part.to(rows.device).view(rows.dtype).view(own.shape) for part in parts]
        return torch.cat([part[:count] for part, count in zip(whole, counts, strict=True)])

    def all_gather_text(self, own: str) -> list[str]:
        """Exchange a text of every rank; return all of them."""
        data = torch.frombuffer(bytearray(own.encode()), dtype=torch.uint8)
        sizes = self.all_gather(torch.tensor([len(data)]), self.size).tolist()
        row = torch.zeros(1, max(sizes), dtype=torch.uint8)
        row[0, : len(data)] = data
        rows = self.all_gather(row, self.size)
        return [bytes(each[:size].tolist()).decode() for each, size in zip(rows, sizes, strict=True)]

    def broadcast_text(self, text: str = "") -> str:
        """Send a text of the first rank to all; return it."""
        return self.all_gather_text(text if self.first else " ")[0]

    def broadcast(self, values: Tensor) -> Tensor:
        """The first rank's values, instead of those here, which only say type and shape."""
        values = values if self.first else torch.empty(values.shape, dtype=values.dtype)
        with self._connected():
            dist.broadcast(values, 0)
        return values

    def gather(self, rows: Tensor, shards: Sequence[slice]) -> Tensor:
        """[A, ...] on the CPU of each rank -> [N, ...] in the first; the others have what they gave. `shards` are the
        rows of each rank among all."""
        codes = self.all_gather(torch.tensor([DTYPES.index(rows.dtype)]), self.size).tolist()
        dtype = reduce(torch.promote_types, (DTYPES[code] for code in codes))  # votes: ranks count as far as they must
        rows = rows.to(dtype)
        with self._connected():
            if not self.first:
                dist.send(pack(rows).flatten(), 0)
                return rows
            whole = rows.new_empty(shards[-1].stop, *rows.shape[1:])
            whole[: len(rows)] = rows
            for rank in range(1, self.size):
                _receive(whole[shards[rank]], rank)
        return whole

    def scatter(self, whole: Tensor, shards: Sequence[slice]) -> Tensor:
        """[N, ...] on the CPU in the first rank -> [A, ...] in each; elsewhere `whole` says type and shape of a row."""
        own = shards[self.rank]
        with self._connected():
            if self.first:
                for rank in range(1, self.size):
                    dist.send(pack(whole[shards[rank]]).flatten(), rank)
                return whole[own]
            rows = torch.empty(own.stop - own.start, *whole.shape[1:], dtype=whole.dtype)
            _receive(rows, 0)
        return rows

    def all_to_all(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]) -> dict[int, Tensor]:
        """Send each rank a string of bytes, and get from each as many as it sends."""
        sent = {rank: self._to_send(data) for rank, data in outgoing.items()}
        where = self.device if self.nccl else torch.device("cpu")
        received = {rank: torch.empty(size, dtype=torch.uint8, device=where) for rank, size in incoming.items()}
        moves = [dist.P2POp(dist.isend, data, rank) for rank, data in sent.items()]
        moves += [dist.P2POp(dist.irecv, data, rank) for rank, data in received.items()]
        with self._connected():
            for work in dist.batch_isend_irecv(moves) if moves else ():
                work.wait()
        return {rank: data.to(self.device) for rank, data in received.items()}

    def _to_send(self, data: Tensor) -> Tensor:
        return data.contiguous() if self.nccl else data.cpu().contiguous()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.disconnect(error)
            raise self.control.wait_for_cause(error) from None

    def disconnect(self, error: BaseException) -> None:
        """Close all connections, so that ranks do not wait for this one any longer. NCCL has to be killed."""
        clear_frames(error.__traceback__)  # they hold on to the connections
        if not self.nccl and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def join_ranks(
    place: Place | None = None,
    device: str = "auto",
    *,
    backend: Backend = "auto",
    waiting: Waiting | None = None,
    listener: socket.socket | None = None,
) -> Iterator[Ranks | None]:
    """Make this process one of several ranks until the block is left.

    A rank that leaves by an exception tells the others why, so that they leave, too.

    Args:
        place: Number and address of this rank; by default what torchrun says.
        device: "cpu", "cuda", "cuda:N" or "auto".
        backend: "gloo", "nccl" or "auto", which is NCCL if each rank has its own GPU.
        waiting: How long to wait for the others.
        listener: The socket at which rank 0 listens, if it is open already.

    Returns:
        A context manager. It gives the ranks, or None where this process is the only one.

    Raises:
        RunError: The ranks did not meet in time, or cannot reach each other.

    Examples:
        >>> import peermask
        >>> with peermask.join_ranks() as ranks:
        ...     print(ranks)
        None
    """
    place, waiting = place or rank_from_env(), waiting or Waiting()
    if place is None or place.size == 1:
        yield None
        return
    own = own_device(device, place)
    control = meet(place, str(own), own.type == "cuda" and dist.is_nccl_available(), waiting, listener)
    ranks = Ranks(place, own, control)
    try:
        ranks.connect(backend)
        yield ranks
        with suppress(RuntimeError):  # the group is no longer needed
            dist.all_reduce(torch.zeros(1))
    except BaseException as error:
        cause = control.report(error)
        ranks.disconnect(error)
        if not isinstance(error, PeermaskError):
            raise
        if not control.prints(cause):
            raise SystemExit(cause.code) from error  # another rank of this host says it
        if cause.text in str(error):
            raise
        raise control.error(cause) from error
    finally:
        control.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def own_device(name: str, place: Place) -> torch.device:
    """GPUs are assigned in order to the ranks of a host, unless one is named."""
    device = pick_device(name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", place.local_rank % torch.cuda.device_count())
    return device


def _receive(rows: Tensor, rank: int) -> None:
    """Fill rows on the CPU with those that a rank sends packed."""
    packed = torch.empty(len(rows) * packed_width(rows), dtype=torch.uint8)
    dist.recv(packed, rank)
    unpack(packed.view(len(rows), -1), rows)


def _register_gloo(address: str) -> str:
    """Make gloo at an address a backend; torch's own "gloo" listens where the host's name leads. Returns its name."""
    name = f"gloo_at_{re.sub('[^0-9a-f]', '_', address)}" if address else "gloo"

    def create(group: Any, _options: object) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = group.timeout
        return dist.ProcessGroupGloo(group.store, group.group_rank, group.group_size, options)

    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])
    return name


def _use_nccl(backend: Backend, members: Sequence[Member]) -> bool:
    """Whether all ranks have their own GPU, which NCCL needs."""
    without = [member for member in members if not member.nccl]
    possible = not without and len({(member.host, member.device) for member in members}) == len(members)
    if backend == "nccl" and not possible:
        why = f"{without[0]} has no GPU that NCCL can use" if without else "some ranks share a GPU"
        raise RunError(f"--backend nccl: {why}; use --backend gloo, or leave it out")
    return possible and backend != "gloo"
