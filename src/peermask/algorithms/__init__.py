"""Methods behind the contract of contract.py. Importing this package registers all of them."""

from peermask.algorithms import (  # noqa: F401
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
from peermask.algorithms.contract import algorithms as algorithms
