"""A case where the lower bound (26) as printed is false: two agents whose best masks of one g are the same.

One layer, one channel, 1 x 1 kernels, and g of width 1 with w_1 = w_2 = 1/2. Its subnetworks are 0 and x/4. For
f_1(x) = x/10 and f_2(x) = x/20 the nearest of them is 0, so m_1 = m_2. At x = 1: ε_1 + ε_2 = 0.15 > α_l = 0.05,
the printed bound promises a distance of at least min{0.1, 0.1, 0.05} = 0.05, and the distance is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peermask.theory.bounds import Distances
from peermask.theory.construct import construct_masks
from peermask.theory.measure import distances
from peermask.theory.random_net import RandomNet
from peermask.theory.target import Target


def counterexample() -> Distances:
    """The case above, with its masks constructed and its distances measured like any other."""
    g = RandomNet((_kernel(0.5), _kernel(0.5)), width=1)
    f1, f2 = Target((_kernel(0.1),)), Target((_kernel(0.05),))
    m1, m2 = construct_masks(g, [f1, f2])
    return distances("counterexample", (f1.layers, f2.layers), (g.masked(m1), g.masked(m2)), _kernel(1.0))


def _kernel(value: float) -> Tensor:
    return torch.full((1, 1, 1, 1), value, dtype=torch.float64)
