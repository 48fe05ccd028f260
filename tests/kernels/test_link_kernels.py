"""Messages over links that change, counted by the kernels, interpreted on a CPU, against the codec's own histories."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from peermask.graph.links import Links
from peermask.run import ledger
from peermask.run.ledger import LinkHistories
from peermask.streams import stream
from peermask.wire import cost, receiver_state
from peermask.wire.cost import COST_COLUMNS, Cost
from peermask.wire.schema import Payload

pytestmark = pytest.mark.usefixtures("interpreted")

SIZES, AGENTS = (25, 8), 3


def bits(purpose: str, density: float) -> Tensor:
    return torch.from_numpy(stream(0, purpose).uniform(AGENTS * sum(SIZES)) < density).view(AGENTS, -1)


def messages(number: int, *, values: bool) -> Payload:
    """Masks of which more and more differ from the first; values on them, where there are any."""
    mask = bits("first", 0.4)
    for each in range(number):
        mask = mask ^ bits(f"flips {each}", 0.08)
    return {"mask": mask, "weights": torch.where(mask, 1.5, 0.0)} if values else {"mask": mask}


def links(number: int) -> Links:
    """Half of all pairs; nobody hears agent 2 in the first round."""
    linked = stream(0, "links", round=number).uniform(AGENTS * AGENTS).reshape(AGENTS, AGENTS) < 0.5
    np.fill_diagonal(linked, False)
    linked[:, 2] &= number > 1
    receivers, senders = np.nonzero(linked)
    return Links.between(receivers, senders, AGENTS)


def counted(histories: LinkHistories, rounds: range, *, values: bool) -> list[Cost]:
    return [histories.cost(messages(number, values=values), links(number), SIZES) for number in rounds]


@pytest.mark.parametrize(("opening", "values"), [(False, True), (True, False)])
def test_lines_take_the_codecs_bytes(monkeypatch: pytest.MonkeyPatch, opening: bool, values: bool) -> None:
    first = messages(0, values=values) if opening else None
    plain = LinkHistories(first, remembered=1)
    wanted, middle = counted(plain, range(1, 3), values=values), plain.tensors()
    wanted += counted(plain, range(3, 4), values=values)
    monkeypatch.setattr(receiver_state, "by_kernels", lambda _: True)
    for module, kernel in (
        (cost, "flips_size_triton"),
        (cost, "count_frames_triton"),
        (receiver_state, "receiver_masks_after_triton"),
    ):
        monkeypatch.setattr(
            module, kernel, partial(getattr(module, kernel), block=32)
        )  # interpreted one entry at a time
    monkeypatch.setattr(ledger, "WEIGHTS_AT_ONCE", 3 * sum(SIZES))  # lines
    fast, resumed = LinkHistories(first, remembered=1), LinkHistories(first, remembered=1)
    equal(counted(fast, range(1, 4), values=values), wanted)
    resumed.restore(middle, messages(2, values=values), SIZES)  # of a CPU
    equal(counted(resumed, range(3, 4), values=values), wanted[2:])
    for end in (fast.tensors(), resumed.tensors()):
        assert set(end) == set(plain.tensors())
        assert all(torch.equal(tensor, plain.tensors()[name]) for name, tensor in end.items())


def equal(ours: list[Cost], theirs: list[Cost]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in COST_COLUMNS:
            assert getattr(one, name).tolist() == pytest.approx(getattr(other, name).tolist(), rel=1e-12), name
