"""One file per method, behind the contract of contract.py. Importing this package registers all of them."""

from peermask.algorithms import ind_mask as _ind_mask
from peermask.algorithms import mce_pl as _mce_pl
from peermask.algorithms.contract import algorithms

__all__ = ["algorithms"]
del _ind_mask, _mce_pl
