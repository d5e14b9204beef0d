"""Pictures of any size and mode as one uint8 array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gradreg.data.dataset import Array
from gradreg.data.errors import DataError
from gradreg.data.optional import require

GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "F")


def read_images(paths: Sequence[Path], *, mode: str, size: tuple[int, int]) -> Array:
    """Image files as uint8 ``[n, height, width]`` (mode L) or ``[n, height, width, 3]`` (RGB)."""
    return np.stack([_read_image(path, mode, size) for path in paths])


def looks_of(paths: Sequence[Path]) -> tuple[str, tuple[int, int]]:
    """The mode that suits all the files (L if all are grey, else RGB), and the size (width, height) of the first."""
    open_image = require("PIL.Image", "cli").open
    looks = []
    for path in paths:
        with _damage_reported(path), open_image(path) as image:
            looks.append((image.mode, image.size))
    return common_mode([mode for mode, _ in looks]), looks[0][1]


def common_mode(modes: Sequence[str]) -> str:
    """L if all images are grey, else RGB.

    >>> common_mode(["L", "P"])
    'RGB'
    """
    return "L" if all(mode in GREY_MODES for mode in modes) else "RGB"


def to_array(image: Any, mode: str, size: tuple[int, int]) -> Array:
    """One PIL image as uint8, resized if it has another size."""
    image = image if image.mode == mode else _converted(image, mode)
    return np.asarray(image if image.size == size else image.resize(size))


def _converted(image: Any, mode: str) -> Any:
    if image.mode == "I;16":  # PIL would clip 16 bits at 255 instead of scaling them
        return require("PIL.Image", "cli").fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert(mode)
    # A palette with transparency has to lose it in two steps.
    return (image.convert("RGBA") if image.mode == "P" else image).convert(mode)


def _read_image(path: Path, mode: str, size: tuple[int, int]) -> Array:
    open_image = require("PIL.Image", "cli").open
    with _damage_reported(path), open_image(path) as image:
        return to_array(image, mode, size)


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}): it is damaged. Remove or replace it.") from error
