"""One file per method, behind the contract of contract.py. Importing this package registers all of them."""

from peermask.algorithms import (
    accord,
    avr_weipru,
    choco,
    dis_pfl,
    ditto,
    dsgd,
    dsgd_prox,
    fedmask,
    fl,
    ind_dense,
    ind_mask,
    ind_weipru,
    lottery_dsgd,
    mce_pl,
    par_weipru,
)
from peermask.algorithms.contract import algorithms

__all__ = [
    "accord", "algorithms", "avr_weipru", "choco", "dis_pfl", "ditto", "dsgd", "dsgd_prox", "fedmask", "fl",
    "ind_dense", "ind_mask", "ind_weipru", "lottery_dsgd", "mce_pl", "par_weipru",
]  # fmt: skip
