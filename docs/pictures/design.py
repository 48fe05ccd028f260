"""Pictures of a run, a round and a node, for docs/design.md: `python docs/pictures/design.py` writes them as SVG.

Plain shapes and text on a white ground, so that they look the same on every page. Roles are named, not files.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
INK, PALE, ACCENT, LINE = "#1f2937", "#eef2ff", "#fde68a", "#64748b"
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
    'font-family="system-ui, sans-serif" role="img" aria-label="{label}">'
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>'
    '<rect width="100%" height="100%" fill="white"/>'
)


def text(x: int, y: int, words: str, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def box(x: int, y: int, width: int, title: str, *lines: str, fill: str = PALE) -> str:
    """A rounded box with a title and lines below it; its height follows from them."""
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{box_height(lines)}" rx="8" fill="{fill}" stroke="{LINE}"/>'
    middle = x + width // 2
    below = [text(middle, y + 40 + 17 * place, line, 12) for place, line in enumerate(lines)]
    return "\n".join([frame, text(middle, y + 21, title, 14, weight="600"), *below])


def box_height(lines: tuple[str, ...]) -> int:
    return 32 + 17 * len(lines)


def arrow(*points: tuple[int, int], label: str = "", at: tuple[int, int] | None = None, anchor: str = "middle") -> str:
    path = " ".join(f"{x},{y}" for x, y in points)
    line = f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#tip)"/>'
    return line if at is None else line + "\n" + text(*at, label, 12, anchor)


def group(x: int, y: int, width: int, height: int, title: str) -> str:
    """A dashed frame around boxes that belong together."""
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" stroke="{LINE}" stroke-dasharray="5 4"/>'  # noqa: E501
    return frame + "\n" + text(x + 12, y + 20, title, 13, "start", "600")


def run() -> Iterator[str]:
    """From a config file to results."""
    yield HEAD.format(width=900, height=330, label="A run")
    yield box(20, 30, 150, "config", "TOML or Python,", "checked before work")
    yield box(215, 30, 150, "build", "data, graph, network,", "weights from a seed")
    yield arrow((170, 63), (213, 63))
    yield arrow((365, 63), (413, 63))
    yield group(415, 10, 465, 215, "loop, the same for simulator, ranks and nodes")
    for place, (title, line) in enumerate(
        [("play", "one round"), ("count", "bytes sent"), ("evaluate", "where due"), ("save", "where due")]
    ):
        yield box(430 + 112 * place, 45, 98, title, line, fill=ACCENT if place == 0 else PALE)
        if place:
            yield arrow((416 + 112 * place, 70), (428 + 112 * place, 70))
    yield arrow((815, 94), (815, 118), (479, 118), (479, 97), label="next round", at=(647, 113))
    yield box(430, 140, 210, "agents", "chunks of states [A, P]: scores,", "masks, votes", fill=PALE)
    yield box(655, 140, 210, "exchange", "local, asynchronous,", "between ranks, or a network")
    yield arrow((455, 96), (455, 138))
    yield arrow((640, 172), (653, 172))
    yield box(215, 245, 150, "run folder", "tables, checkpoints,", "masks, manifest")
    yield arrow(
        (840, 96), (872, 96), (872, 285), (367, 285), label="rows and states, written atomically", at=(610, 279)
    )
    yield box(20, 245, 150, "results", "RunResult, report,", "ticket, ONNX")
    yield arrow((213, 278), (172, 278))
    yield arrow((290, 243), (290, 98), label="resume", at=(300, 175), anchor="start")
    yield "</svg>"


def round_() -> Iterator[str]:
    """What two neighbours do in a round."""
    yield HEAD.format(width=900, height=300, label="A round")
    steps = (
        ("learn", "gradient on one batch;", "scores z change"),
        ("share", "mask m½ of the", "largest scores"),
        ("move", "encoded as flips since", "the last message"),
        ("fuse", "count votes n; scores", "follow neighbours"),
        ("deploy", "model w ⊙ m,", "w is never trained"),
    )
    for row, (agent, y) in enumerate((("agent i", 42), ("neighbour j", 200))):
        yield text(12, y - 12, agent, 14, "start", "600")
        for place, (title, *lines) in enumerate(steps):
            yield box(12 + 178 * place, y, 162, title, *lines, fill=ACCENT if title == "move" else PALE)
            if place:
                yield arrow((174 + 178 * (place - 1), y + 33), (188 + 178 * (place - 1), y + 33))
        ends = ((449, 109), (610, 198)) if row == 0 else ((449, 198), (610, 111))
        yield arrow(*ends)
    yield text(440, 157, "masks, and nothing else", 12, "end")
    yield arrow((805, 42), (805, 18), (120, 18), (120, 40))
    yield text(450, 13, "next round", 12)
    yield "</svg>"


def node() -> Iterator[str]:
    """One agent on a device, and what it talks to."""
    yield HEAD.format(width=900, height=380, label="A node")
    yield group(190, 10, 520, 360, "one process on one device")
    yield box(210, 45, 130, "gate", "only TLS handshakes,", "a few at a time")
    yield box(370, 45, 150, "zenoh session", "mutual TLS, access", "control per neighbour")
    yield box(560, 45, 130, "responder", "answers for rounds", "it has published")
    yield box(560, 140, 130, "puller", "asks for round k,", "until a deadline")
    yield box(370, 140, 150, "codec", "frames of flips,", "checked before use")
    yield box(370, 235, 150, "loop", "learn, share, move,", "fuse, evaluate, save", fill=ACCENT)
    yield box(560, 235, 130, "journal", "tables, checkpoints,", "absent neighbours")
    yield box(210, 140, 130, "operator server", "answers status", "over mutual TLS")
    yield box(210, 235, 130, "watch thread", "new roster or", "certificate: reopen")
    yield text(450, 340, "private key: readable by its owner only, never sent", 12)
    yield box(20, 45, 130, "neighbours", "gates of their", "own devices")
    yield box(20, 140, 130, "operator", "with a certificate", "of its own")
    yield box(20, 235, 130, "fleet authority", "signs certificates", "and rosters, offline")
    yield box(740, 140, 140, "Prometheus", "/metrics, /healthz", "on loopback")
    yield box(740, 235, 140, "disk", "a run folder, as in", "the simulator")
    yield arrow((150, 78), (208, 78))
    yield arrow((340, 78), (368, 78))
    yield arrow((520, 70), (558, 70))
    yield arrow((625, 138), (625, 124), (540, 124), (540, 88), (522, 88))
    yield arrow((520, 165), (558, 165))
    yield arrow((558, 180), (522, 180))
    yield arrow((430, 207), (430, 233))
    yield arrow((460, 233), (460, 209))
    yield arrow((520, 268), (558, 268))
    yield arrow((690, 268), (738, 268))
    yield arrow((150, 160), (180, 160), (180, 92), (208, 92))
    yield arrow((275, 113), (275, 138))
    yield arrow((150, 268), (208, 268), label="roster", at=(170, 284))
    yield arrow((340, 255), (356, 255), (356, 105), (368, 105))
    yield arrow((738, 173), (716, 173), (716, 220), (500, 220), (500, 233))
    yield "</svg>"


PICTURES = {"run": run, "round": round_, "node": node}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text("\n".join(draw()) + "\n", encoding="utf-8")
