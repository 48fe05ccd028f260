"""One file per method, behind the contract of contract.py. Importing this package registers all of them."""

from peermask.algorithms import (
    accord,
    choco,
    dis_pfl,
    ditto,
    dsgd,
    dsgd_prox,
    fedmask,
    fl,
    ind_dense,
    ind_mask,
    lottery_dsgd,
    mce_pl,
    weipru,
)
from peermask.algorithms.contract import algorithms

__all__ = [
    "accord", "algorithms", "choco", "dis_pfl", "ditto", "dsgd", "dsgd_prox", "fedmask", "fl", "ind_dense",
    "ind_mask", "lottery_dsgd", "mce_pl", "weipru",
]  # fmt: skip
