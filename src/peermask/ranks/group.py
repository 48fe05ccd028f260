"""The ranks of a run, and all that passes between them.

CPU tensors travel by gloo, those of a GPU by NCCL, or over the CPU by gloo where ranks share a GPU. All ranks call the
same functions in the same order. If one of them is gone, each call raises `LostRankError`, which names it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import reduce
from traceback import clear_frames
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from peermask.engine.device import pick_device
from peermask.errors import LostRankError, PeermaskError, RunError
from peermask.ranks.packed import DTYPES, pack, packed_width, unpack
from peermask.ranks.place import Place
from peermask.ranks.rendezvous import Meeting, meet
from peermask.ranks.shards import shard
from peermask.ranks.watch import Watch

Backend = Literal["auto", "gloo", "nccl"]
PATIENCE = timedelta(minutes=30)  # for a rank that is alive and busy, as with a slow disk


class Ranks:
    """Shapes: N agents, of which A are here."""

    def __init__(self, place: Place, device: torch.device, meeting: Meeting, watch: Watch) -> None:
        self.place, self.rank, self.size, self.device = place, place.rank, place.size, device
        self.nccl = False
        self.members, self.watch, self._meeting = meeting.members, watch, meeting
        alike = [(m.host, told["device"]) for m, told in zip(meeting.members, meeting.told, strict=True)]
        self.sharing = alike.count(alike[place.rank])  # ranks that have this device, itself included

    def connect(self, backend: Backend) -> None:
        self.nccl = _by_nccl(backend, self._meeting)
        if self.nccl:
            torch.cuda.set_device(self.device)
        with self._connected():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if self.nccl else "gloo",
                store=self._meeting.store,
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

    def shard(self, agents: int, rank: int | None = None) -> slice:
        """The agents of this rank, or of another."""
        return shard(agents, self.size, self.rank if rank is None else rank)

    def shards(self, agents: int) -> list[slice]:
        """The agents of each rank."""
        return [self.shard(agents, rank) for rank in range(self.size)]

    def any(self, wanted: bool) -> bool:
        """Whether any rank says so."""
        flag = torch.tensor([int(wanted)])
        with self._connected():
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def everyone(self, rows: Tensor, agents: int) -> Tensor:
        """[A, ...] of each rank -> [N, ...] in every rank."""
        most = -(-agents // self.size)
        own = rows.new_zeros(most, *rows.shape[1:])
        own[: len(rows)] = rows
        sent = self._to_send(own.reshape(-1).view(torch.uint8))
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with self._connected():
            dist.all_gather(parts, sent)
        counts = [len(range(agents)[self.shard(agents, rank)]) for rank in range(self.size)]
        whole = [part.to(rows.device).view(rows.dtype).view(own.shape) for part in parts]
        return torch.cat([part[:count] for part, count in zip(whole, counts, strict=True)])

    def texts(self, own: str) -> list[str]:
        """What every rank says."""
        data = torch.frombuffer(bytearray(own.encode()), dtype=torch.uint8)
        sizes = self.everyone(torch.tensor([len(data)]), self.size).tolist()
        row = torch.zeros(1, max(sizes), dtype=torch.uint8)
        row[0, : len(data)] = data
        rows = self.everyone(row, self.size)
        return [bytes(each[:size].tolist()).decode() for each, size in zip(rows, sizes, strict=True)]

    def tell(self, text: str = "") -> str:
        """What the first rank says."""
        return self.texts(text if self.first else " ")[0]

    def from_first(self, values: Tensor) -> Tensor:
        """The first rank's values, in place of those of the same shape here."""
        with self._connected():
            dist.broadcast(values, 0)
        return values

    def collect(self, rows: Tensor, shards: Sequence[slice]) -> Tensor:
        """[A, ...] on the CPU of each rank -> [N, ...] in the first; the others have what they gave. `shards` are the
        rows of each rank among all."""
        codes = self.everyone(torch.tensor([DTYPES.index(rows.dtype)]), self.size).tolist()
        dtype = reduce(torch.promote_types, (DTYPES[code] for code in codes))  # votes: ranks count as far as they must
        rows = rows.to(dtype)
        with self._connected():
            if not self.first:
                dist.send(pack(rows).flatten(), 0)
                return rows
            whole = rows.new_empty(shards[-1].stop, *rows.shape[1:])
            whole[: len(rows)] = rows
            for rank in range(1, self.size):
                part = whole[shards[rank]]
                packed = torch.empty(len(part) * packed_width(part), dtype=torch.uint8)
                dist.recv(packed, rank)
                unpack(packed.view(len(part), -1), part)
        return whole

    def distribute(self, whole: Tensor, shards: Sequence[slice]) -> Tensor:
        """[N, ...] on the CPU in the first rank -> [A, ...] in each; elsewhere `whole` says type and shape of a row."""
        own = shards[self.rank]
        with self._connected():
            if self.first:
                for rank in range(1, self.size):
                    dist.send(pack(whole[shards[rank]]).flatten(), rank)
                return whole[own]
            rows = torch.empty(own.stop - own.start, *whole.shape[1:], dtype=whole.dtype)
            packed = torch.empty(len(rows) * packed_width(rows), dtype=torch.uint8)
            dist.recv(packed, 0)
            unpack(packed.view(len(rows), -1), rows)
        return rows

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]) -> dict[int, Tensor]:
        """Send each rank a string of bytes, and get from each as many as it sends."""
        kept = {rank: self._to_send(data) for rank, data in outgoing.items()}
        where = self.device if self.nccl else torch.device("cpu")
        came = {rank: torch.empty(size, dtype=torch.uint8, device=where) for rank, size in incoming.items()}
        moves = [dist.P2POp(dist.isend, data, rank) for rank, data in kept.items()]
        moves += [dist.P2POp(dist.irecv, data, rank) for rank, data in came.items()]
        with self._connected():
            for work in dist.batch_isend_irecv(moves) if moves else ():
                work.wait()
        return {rank: data.to(self.device) for rank, data in came.items()}

    def _to_send(self, data: Tensor) -> Tensor:
        return data.contiguous() if self.nccl else data.cpu().contiguous()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.disconnect(error)
            raise self.watch.lost(error) from None

    def disconnect(self, error: BaseException) -> None:
        """Close all connections, so that ranks do not wait for this one any longer. NCCL has to be killed."""
        clear_frames(error.__traceback__)  # they hold on to the connections
        if not self.nccl and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def joined(
    place: Place,
    device: torch.device,
    *,
    backend: Backend = "auto",
    limit: float = 300.0,
    should_stop: Callable[[], bool] = lambda: False,
    fate: Callable[[int], str | None] = lambda _: None,
    listener: socket.socket | None = None,
) -> Iterator[Ranks]:
    """This process as one of several ranks, until the block is left; then nothing of it is left.

    A rank that leaves by an exception tells the others why, so that they leave, too.
    """
    about = {"device": str(device), "nccl": device.type == "cuda" and dist.is_nccl_available()}
    meeting = meet(place, about, limit, should_stop, fate, listener)
    watch = Watch(meeting.spare, place.rank, meeting.members, place.keeper, fate)
    watch.start()
    ranks = Ranks(place, device, meeting, watch)
    try:
        ranks.connect(backend)
        yield ranks
        with suppress(RuntimeError):  # the group is no longer needed
            dist.all_reduce(torch.zeros(1))
    except BaseException as error:
        ranks.disconnect(error)
        farewell = watch.leave(error)
        if not isinstance(error, PeermaskError):
            raise
        if not watch.speaks(farewell):
            raise SystemExit(farewell.code) from error  # another rank of this host says it
        if farewell.text == str(error):
            raise
        raise LostRankError(farewell.text, farewell.code, farewell.lost) from error
    finally:
        watch.stop()
        if dist.is_initialized():
            dist.destroy_process_group()


def own_device(name: str, place: Place) -> torch.device:
    """GPUs are assigned in order to the ranks of a host, unless one is named."""
    device = pick_device(name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", place.local_rank % torch.cuda.device_count())
    return device


def _by_nccl(backend: Backend, meeting: Meeting) -> bool:
    """Whether all ranks have their own GPU, which NCCL needs."""
    gpus = [(m.host, told["device"]) for m, told in zip(meeting.members, meeting.told, strict=True)]
    without = [m for m, told in zip(meeting.members, meeting.told, strict=True) if not told["nccl"]]
    possible = not without and len(set(gpus)) == len(gpus)
    if backend == "nccl" and not possible:
        why = f"{without[0]} has no GPU that NCCL can use" if without else "some ranks share a GPU"
        raise RunError(f"--backend nccl: {why}; use --backend gloo, or leave it out")
    return possible and backend != "gloo"
