"""Messages in half precision: real values travel as float16, and are float32 again where they are used.

Masks stay as they are. An agent's own message is rounded for itself, too: all agents use the same values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peermask.algorithms.contract import Algorithm, Clock
from peermask.graph.mixing import Mixing
from peermask.wire.schema import Payload


class HalfPrecision:
    """An algorithm with float16 messages; everything else is that algorithm's.

    Values beyond ±65,504 become infinite, which the codec reports as it reports a run that diverges.
    """

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self.algorithm = algorithm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["algorithm"], name)

    def share(self, state: Any) -> Payload:
        return _converted(self.algorithm.share(state), torch.float32, torch.float16)

    def fuse(self, state: Any, received: Payload, mixing: Mixing, clock: Clock) -> Any:
        return self.algorithm.fuse(state, _converted(received, torch.float16, torch.float32), mixing, clock)

    def join(self, state: Any, received: Payload, mixing: Mixing) -> Any:
        return self.algorithm.join(state, _converted(received, torch.float16, torch.float32), mixing)

    def unmixed_model(self, payload: Payload) -> Tensor | None:
        return self.algorithm.unmixed_model(_converted(payload, torch.float16, torch.float32))


def _converted(payload: Payload, before: torch.dtype, after: torch.dtype) -> Payload:
    return {name: leaf.to(after) if leaf.dtype == before else leaf for name, leaf in payload.items()}
