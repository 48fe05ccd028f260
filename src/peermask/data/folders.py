"""Images in folders by agent and class: train/AGENT/CLASS/*.png and test/AGENT/CLASS/*.png."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from peermask.data.dataset import Dataset, Split, datasets
from peermask.data.normalisation import Range
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


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
MOST = 1 << 32  # bytes of all pixels


class ImageFile(NamedTuple):
    path: Path
    agent: str
    label: str


@datasets.register("folders")
def folders(
    *,
    path: Annotated[str, Field(min_length=1, description="folder with train and test, each with agents, then classes")],
    agents: Annotated[bool, Field(description="whether there is a folder for each agent; if not, only classes")] = True,
    size: Annotated[
        tuple[int, int] | None, Field(description="height and width to scale to; default: not scaled")
    ] = None,
    grey: Annotated[bool, Field(description="one channel instead of three")] = False,
) -> Dataset:
    """Your own images in folders by agent and class, for the partition `given`."""
    root = Path(path)
    if size is not None and min(size) < 1:
        raise DataError(f"dataset.size is {list(size)}; a height and a width of at least 1 are needed")
    parts = {part: find_images(root / part, agents=agents) for part in ("train", "test")}
    both = [images for part in parts.values() for images in part]
    classes = sorted({images.label for images in both}, key=natural_order)
    owners = sorted({images.agent for images in parts["train"]}, key=natural_order)
    splits = [read_split(images, classes, owners if agents else None, size, grey=grey) for images in parts.values()]
    return Dataset(root.name or "folders", splits[0], splits[1], tuple(classes), Range(high=255.0))


def find_images(folder: Path, *, agents: bool) -> list[ImageFile]:
    """List images in an order that does not depend on the disk."""
    if not folder.is_dir():
        raise DataError(f"dataset.path: there is no folder {folder}")
    depth = 3 if agents else 2
    images = []
    for file in folder.rglob("*"):
        if file.suffix.lower() not in SUFFIXES or not file.is_file():
            continue
        place = file.relative_to(folder).parts
        if len(place) != depth:
            form = "AGENT/CLASS/image" if agents else "CLASS/image"
            raise DataError(f"{file} is not {folder}/{form}; set dataset.agents, or move it")
        images.append(ImageFile(file, place[0] if agents else "", place[-2]))
    if not images:
        raise DataError(f"{folder} has no images ({', '.join(SUFFIXES)})")
    return sorted(images, key=lambda one: [natural_order(part) for part in one.path.parts])


def read_split(
    found: list[ImageFile], classes: list[str], owners: list[str] | None, size: tuple[int, int] | None, *, grey: bool
) -> Split:
    channels = 1 if grey else 3
    first = read_pixels(found[0].path, channels, size)
    if len(found) * first.size > MOST:
        raise DataError(f"{len(found)} images of {first.shape} have more than {MOST:,} pixels; set dataset.size")
    pixels = np.empty((len(found), *first.shape), np.uint8)
    for place, one in enumerate(found):
        image = read_pixels(one.path, channels, size)
        if image.shape != first.shape:
            raise DataError(
                f"image {one.path} is {image.shape[1]}x{image.shape[2]}, but {found[0].path} is "
                f"{first.shape[1]}x{first.shape[2]}; set dataset.size to scale them"
            )
        pixels[place] = image
    labels = torch.tensor([classes.index(one.label) for one in found])
    if owners is None:
        return Split(torch.from_numpy(pixels), labels)
    stranger = next((one for one in found if one.agent not in owners), None)
    if stranger is not None:
        raise DataError(f"agent {stranger.agent!r} has test images ({stranger.path}) but no training images")
    return Split(torch.from_numpy(pixels), labels, torch.tensor([owners.index(one.agent) for one in found]))


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """Numbers by their size: agent 2 comes before agent 10."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts]
