"""A folder of pictures with a subfolder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradreg.data.assemble import assemble, assemble_with_test_set
from gradreg.data.dataset import Dataset
from gradreg.data.errors import DataError
from gradreg.data.images import looks_of, read_images

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})

Labelled = list[tuple[Path, str]]


def load_folder(folder: Path, image_size: int | None = None) -> Dataset:
    """Pictures by class: ``folder/<class>/*.png``, or ``folder/train/<class>`` and ``folder/test/<class>``.

    Args:
        folder: without ``train`` and ``test``, a fifth of the pictures, always the same ones, becomes the test set.
        image_size: pixels of a side, to which pictures are resized; without it, the size of the first picture.
    """
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = _labelled_files(folder / "train"), _labelled_files(folder / "test")
    else:
        train, test = _labelled_files(folder), []
    files = [path for path, _ in train + test]
    mode, size = looks_of(files)
    x = read_images(files, mode=mode, size=(image_size, image_size) if image_size else size)
    y = np.array([label for _, label in train + test])
    cut = len(train)
    if not test:
        return assemble_with_test_set(str(folder), x, y, task="classification")
    return assemble(str(folder), x[:cut], y[:cut], x[cut:], y[cut:], task="classification")


def _labelled_files(folder: Path) -> Labelled:
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise DataError(f"{folder} has no subfolders: expected one for each class, with its pictures in it.")
    return [(path, kind.name) for kind in classes for path in _pictures(kind)]


def _pictures(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(
            f"{folder} has no pictures, so there is nothing to know class {folder.name} by: add some "
            f"({', '.join(sorted(SUFFIXES))}), or remove the folder."
        )
    return found
