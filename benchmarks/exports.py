"""Size, work, latency and memory of exported models: whole and slim, as float32 and as signs.

    python -m benchmarks.exports [--model alexnet] [--shape 3 32 32] [--retention 0.4] [--repeats 200]

Masks are drawn at random: unstructured ones, and whole filters, which are cut out. Each file runs in a process of its
own, one image on one thread, and its latency is the least of all repeats; `folded` are files that onnxruntime turns
into float32 when it loads them (session.disable_quant_qdq).
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from pathlib import Path
from typing import get_args

from torch import nn

from peermask.compute.network import blank
from peermask.exports import Precision
from peermask.exports.onnx import to_onnx, with_signs
from peermask.exports.profile import Kind, masked_params, run_trial
from peermask.exports.rebuild import named_module
from peermask.exports.slim import count_multiply_adds, count_parameters, slim
from peermask.exports.ticket import Architecture
from peermask.models.layout import find_layout
from peermask.run.assemble import with_params
from peermask.task import format_bytes


def masked(options: argparse.Namespace, kind: Kind) -> nn.Module:
    """A network under a random mask; with dead filters, without them."""
    named = Architecture(name=options.model, shape=tuple(options.shape), layers=("*",))
    module = named_module(named, options.classes, "benchmark", tokens=False)
    layout = find_layout(module, named.layers)
    params = masked_params(layout, options.retention, kind)
    made = with_params(module.to_empty(device="cpu"), layout, params)
    return slim(made, tuple(options.shape)).module if kind == "filters" else made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--shape", type=int, nargs=3, default=[3, 32, 32])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--retention", type=float, default=0.4)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    example = blank(options.shape, tokens=False)
    print(f"{options.model}, r = {options.retention:g}, one thread of {platform.processor() or platform.machine()}")
    heads = ("kept", "weights", "file", "parameters", "multiply-adds", "latency", "memory", "folded: latency", "memory")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for kind in get_args(Kind):
            module = masked(options, kind)
            data = to_onnx(module, example, {})
            for precision in get_args(Precision):
                path.write_bytes(with_signs(data, precision).data)
                cells = [kind, precision, format_bytes(path.stat().st_size), f"{count_parameters(module):,}"]
                cells += [f"{count_multiply_adds(module, example):,}", *measured(path, options.repeats, fold=False)]
                cells += ["", ""] if precision == "float32" else measured(path, options.repeats, fold=True)
                print("| " + " | ".join(cells) + " |", flush=True)


def measured(path: Path, repeats: int, *, fold: bool) -> list[str]:
    found = run_trial(path, repeats, fold=fold)
    return [f"{1000 * found['least_latency']:.2f} ms", format_bytes(found["memory"])]


if __name__ == "__main__":
    main()
