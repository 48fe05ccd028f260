"""A network that answers among some labels alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from peermask.models.outputs import OwnLabels, among, with_readout

LOGITS = torch.tensor([[9.0, 1.0, -3.0, 2.0], [-5.0, -7.0, -6.0, 40.0]])


def test_other_labels_are_never_the_answer_and_have_no_probability() -> None:
    """Labels 1 and 2: of 1 and −3 the first is larger, of −7 and −6 the second."""
    read = among(LOGITS, torch.tensor([False, True, True, False]))
    assert read.argmax(1).tolist() == [1, 2]
    chances = read.softmax(1)
    assert chances[:, [0, 3]].tolist() == [[0, 0], [0, 0]]
    torch.testing.assert_close(chances[:, 1:3], LOGITS[:, 1:3].softmax(1))
    assert bool(torch.isfinite(read).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision_will_do(dtype: torch.dtype) -> None:
    read = among(LOGITS.to(dtype), torch.tensor([False, True, True, False]))
    assert read.dtype == dtype
    assert read.argmax(1).tolist() == [1, 2]
    assert read.softmax(1)[:, 3].tolist() == [0, 0]


def test_a_network_among_all_labels_is_itself() -> None:
    network = nn.Linear(3, 4)
    assert with_readout(network, "all", (1, 2), 4) is network
    own = with_readout(network.eval(), "own", (1, 2), 4)
    assert isinstance(own, OwnLabels)
    assert not own.training
    x = torch.ones(2, 3)
    assert torch.equal(own(x)[:, 1:3], network(x)[:, 1:3])
