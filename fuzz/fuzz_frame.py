"""Coverage-guided fuzzing of the frame decoder with atheris: any bytes give a WireError or a valid payload.

    pip install atheris
    PYTHONPATH=src:. python -m fuzz.fuzz_frame -runs=1000000 CORPUS_DIR

The first input byte picks the schema, how the rest becomes a frame, and whether the receiver holds the history.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["peermask.wire"]):
    from peermask.errors import WireError
    from peermask.wire import FrameHeader, decode_frame, encode_frame
from fuzz.cases import CHECKSUM, HEADER, Case, dressed, make_cases, resealed

CASES = make_cases()
AS_IS, RESEALED, BODY, DELTA_BODY = range(4)


def split(data: bytes) -> tuple[Case, bool, bytes]:
    """Schema, whether the history is held, and the frame that `data` stands for."""
    choice, rest = data[0], data[1:]
    case = CASES[choice % len(CASES)]
    way = (choice // len(CASES)) % 4
    if way in (BODY, DELTA_BODY):
        rest = dressed(case, rest, way == DELTA_BODY)
    elif way == RESEALED:
        rest = resealed(rest)
    return case, choice < 192, rest


def check(data: bytes) -> None:
    """Decode; a payload that is accepted must survive another trip."""
    if not data:
        return
    case, holds_history, frame = split(data)
    before = held(case)
    try:
        header, payload = decode_frame(frame, case.expected, case.history if holds_history else None)
    except WireError:
        return
    finally:
        if held(case) != before:
            raise AssertionError("decoding changed the history")
    schema = case.expected.schema
    schema.check(payload)
    again = encode_frame(FrameHeader(header.run_id, header.sender, header.round), payload, schema)
    _, back = decode_frame(again, case.expected)
    if any(back[name].tobytes() != payload[name].tobytes() for name in payload):
        raise AssertionError("a payload changed on its second trip")
    if header.history is not None:
        case.history.after(payload)


def held(case: Case) -> list[bytes]:
    """All that a decoder could change."""
    contexts = case.history.contexts.values()
    arrays = [a for c in contexts for a in (c.states, c.weights, c.seen, c.flips)]
    return [array.tobytes() for array in (*case.history.payload.values(), *arrays)]


def write_seeds(folder: Path) -> None:
    """Valid frames and their bodies, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(CASES):
        for index, frame in enumerate(case.frames()):
            body = frame[HEADER.size : -CHECKSUM.size]
            for way, content in ((AS_IS, frame), (RESEALED, frame), (BODY, body), (DELTA_BODY, body)):
                name = f"{number}-{index}-{way}"
                (folder / name).write_bytes(bytes([number + len(CASES) * way]) + content)


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    if folders:
        write_seeds(folders[0])
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
