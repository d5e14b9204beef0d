"""Files of named arrays: reading them without pickle, writing them whole or not at all."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from gradreg.data.dataset import Array
from gradreg.data.errors import DataError


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of a file, by name."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check the spelling, and the folder you are in.") from None
    except (OSError, EOFError, ValueError, TypeError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read as npz ({error}): it is damaged, or holds Python objects. "
            "Write plain arrays with np.savez, and texts as np.array(texts, dtype=str)."
        ) from error


def write_npz(path: Path, arrays: dict[str, Array]) -> None:
    """Write a dataset's four arrays under another name first, so that ``path`` never is a half-written file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            np.savez(
                file,
                x_train=arrays["x_train"],
                y_train=arrays["y_train"],
                x_test=arrays["x_test"],
                y_test=arrays["y_test"],
            )
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
