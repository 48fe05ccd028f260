"""Hypothesis without its deadline: a test that asserts a time fails on a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
