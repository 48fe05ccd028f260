"""An image file as the pixels a model takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peermask.errors import ExportError

try:
    from PIL import Image
except ImportError as error:
    raise ExportError("reading images needs Pillow; install it with: pip install 'peermask[export]'") from error

MAX_PIXELS = 1 << 26


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """[C, H, W] float32 in [0, 1]: grey or coloured as the model wants it, scaled to its size."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise ExportError(f"the model takes {channels} channels; image files give 1 or 3")
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ExportError(f"image {path} has {image.width}x{image.height} pixels, allowed: {MAX_PIXELS}")
            ready = image.convert("L" if channels == 1 else "RGB")
            if ready.size != (width, height):
                ready = ready.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(ready, dtype=np.float32) / 255  # [H, W] or [H, W, C]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ExportError(f"image {path} cannot be read: {reason}") from error
    return torch.from_numpy(pixels).view(height, width, channels).permute(2, 0, 1)
