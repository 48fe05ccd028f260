"""One ONNX model in its own process, so that its memory can be measured separately.

    python -m peermask.exports.trial EMPTY.onnx MODEL.onnx REPEATS [fold]

prints a JSON object: seconds for one input on one thread (the median, and the least), and the bytes by which loading
and running the model made the process grow, after onnxruntime itself was set up with a model that does nothing. Nothing
else is imported, as on a device that only runs the model. With `fold`, weights stored as integers become float32 when
the model is loaded, and not for every input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any


def resident() -> int:
    """Bytes of memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_session(model: str | bytes, *, fold: bool = False) -> Any:
    """A session of onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if fold:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: str | bytes, repeats: int, *, fold: bool = False) -> tuple[object, list[float]]:
    """The session, which holds the memory, and the times."""
    import numpy as np

    session = make_session(model, fold=fold)
    given = session.get_inputs()[0]
    kind = {"tensor(int64)": np.int64, "tensor(uint8)": np.uint8}.get(given.type, np.float32)
    example = np.zeros([1, *given.shape[1:]], kind)
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        session.run(None, {given.name: example})
        times.append(time.perf_counter() - begun)
    return session, times


def main(empty: str, path: str, repeats: int, *, fold: bool) -> None:
    runtime = run(empty, 1)
    before = resident()
    session, times = run(path, repeats, fold=fold)
    memory = max(0, resident() - before)
    print(json.dumps({"latency": median(times), "least_latency": min(times), "memory": memory}))
    del runtime, session


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), fold=sys.argv[4:] == ["fold"])
