"""`--seeds`: how many, or which."""

from __future__ import annotations

from peermask.errors import ConfigError


def parse_seeds(text: str) -> list[int]:
    """`3` means 0, 1, 2; `4,7` means those."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"--seeds {text!r}: must be how many, such as 3, or a list of whole numbers, such as 0,1,2")
    values = [int(part) for part in parts]
    if len(values) == 1 and "," not in text:
        if not 1 <= values[0] <= 1000:
            raise ConfigError(f"--seeds {text!r}: must be from 1 to 1000 seeds, or a list such as 0,1,2")
        return list(range(values[0]))
    if len(set(values)) < len(values) or max(values) >= 2**63:
        raise ConfigError(f"--seeds {text!r}: every seed must be given once, and be below 2^63")
    return values
