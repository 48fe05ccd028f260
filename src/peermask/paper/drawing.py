"""Empty panels, and finished figures as PNG and SVG; the only file here that loads matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from peermask.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


def blank(rows: int, columns: int, size: tuple[float, float], widths: Sequence[int] = ()) -> tuple[Figure, Any]:
    """Make empty panels [rows, columns]; also the way to find out early that matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figures need matplotlib; install it with: pip install 'peermask[report]'") from None
    figure = Figure(figsize=size, layout="constrained")  # no pyplot: nothing global, no window
    return figure, figure.subplots(rows, columns, squeeze=False, width_ratios=widths or None)


def finish(axes: Axes, x: str, y: str) -> None:
    """Label the axes, with a light grid behind the data and no frame."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_axisbelow(True)
    axes.grid(True, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def lighter(colour: str, share: float) -> tuple[float, ...]:
    """`#rrggbb`, mixed with a share of white."""
    from matplotlib.colors import to_rgb

    return tuple(share + (1 - share) * part for part in to_rgb(colour))


def files_of(name: str, figure: Figure, dpi: int = 160, svg_text: str = "path") -> dict[str, bytes]:
    """File name -> content. The same picture is the same file: no date, and ids in the SVG that do not change."""
    from matplotlib import rc_context

    files = {}
    for extension in FORMATS:
        content = io.BytesIO()
        with rc_context({"svg.hashsalt": "peermask", "svg.fonttype": svg_text}):
            metadata = {"Date": None} if extension == "svg" else None
            figure.savefig(content, format=extension, dpi=dpi, metadata=metadata)
        files[f"{name}.{extension}"] = content.getvalue()
    return files
