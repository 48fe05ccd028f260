"""An image file as bytes of pixels, read without trust."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peermask.errors import DataError

MAX_PIXELS = 1 << 26


def read_pixels(path: Path, channels: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """[C, H, W]: grey or coloured as wanted, scaled to `size` (H, W) if one is given."""
    try:
        from PIL import Image  # optional
    except ImportError as error:
        raise DataError("reading images needs Pillow; install it with: pip install 'peermask[export]'") from error
    if channels not in (1, 3):
        raise DataError(f"the model takes {channels} channels; image files give 1 or 3")
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"image {path} has {image.width}x{image.height} pixels, allowed: {MAX_PIXELS}")
            if image.mode.startswith(("I", "F")):
                raise DataError(f"image {path} has more than 8 bits a pixel (mode {image.mode}); convert it to 8 first")
            ready = image.convert("L" if channels == 1 else "RGB")
            if size is not None and ready.size != (size[1], size[0]):
                ready = ready.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(ready, dtype=np.uint8)  # [H, W] or [H, W, C]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"image {path} cannot be read: {reason}") from error
    return pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)
