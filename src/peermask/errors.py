"""Everything that can go wrong and is not a bug, as one tree.

    PeermaskError
    ├── ConfigError        a key or value of the config
    ├── GraphError         a graph that cannot be built, or is not connected
    ├── DataError          a dataset or partition
    ├── ModelError         a network that cannot be masked, or does not fit the data
    ├── RunError           a run folder, checkpoint or device
    │   ├── DivergedError  a loss that is NaN or infinite
    │   ├── FullDiskError  temporary: the same command may succeed later
    │   └── LostRankError  temporary: a process that computed some of the agents is gone
    ├── WireError          bytes from outside that are not a valid frame
    ├── NodeError          a fleet, certificate or peer
    │   └── NotYetError    temporary: an address that is not up, a clock that is behind, neighbours that are not there
    └── ExportError        a ticket or exported model

The command line prints any of them as one line and exits with 2, or with 75 where it is temporary and the same command
may succeed later (EX_TEMPFAIL of sysexits.h).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class PeermaskError(Exception):
    """An error that the user can fix; its message is one line that says how.

    Examples:
        >>> import peermask
        >>> try:
        ...     peermask.make_config({"rounds": 0})
        ... except peermask.PeermaskError as error:
        ...     print(error)
        rounds = 0: must be at least 1
    """

    exit_code = 2


class ConfigError(PeermaskError): ...


class GraphError(PeermaskError): ...


class DataError(PeermaskError): ...


class ModelError(PeermaskError): ...


class RunError(PeermaskError): ...


class DivergedError(RunError):
    root: Path | None = None  # the folder of a comparison whose other algorithms may have finished


class FullDiskError(RunError):
    exit_code = 75


class LostRankError(RunError):
    exit_code = 75

    def __init__(self, message: str, exit_code: int = 75) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # that of the first rank to leave


class WireError(PeermaskError):
    def __init__(self, message: str, why: str = "damaged") -> None:
        super().__init__(message)
        self.why = why  # one word, under which a receiver counts it


class NodeError(PeermaskError): ...


class NotYetError(NodeError):
    exit_code = 75


class ExportError(PeermaskError): ...


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'ring'? known: complete, grid, ring`, with the guess left out where nothing is near."""
    names = sorted(known)
    guess = get_close_matches(word, names, n=1)
    hint = f"did you mean {guess[0]!r}? " if guess else ""
    return f"{hint}known: {', '.join(names) or 'none'}"
