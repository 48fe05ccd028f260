"""Networks: built-in ones, how they are laid out and computed, and their frozen weights."""

from peermask.models import efficientnet as efficientnet  # which registers itself
