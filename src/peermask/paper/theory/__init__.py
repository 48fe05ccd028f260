"""Theorem 1 (distributed strong lottery tickets), executable: see docs/theory.md."""
