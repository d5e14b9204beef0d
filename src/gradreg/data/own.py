"""The user's own data, by the form they come in."""

from __future__ import annotations

from pathlib import Path

from gradreg.data.assemble import assemble, assemble_with_test_set
from gradreg.data.dataset import Dataset, Task
from gradreg.data.errors import DataError
from gradreg.data.folder import load_folder
from gradreg.data.npz import read_npz
from gradreg.data.table import load_table

KEYS = ("x_train", "y_train", "x_test", "y_test")


def load_own(path: Path, *, label: str | None = None, image_size: int | None = None, task: Task | None = None) -> Dataset:
    """A ``.npz`` file, a ``.csv`` file or a folder of pictures."""
    if not path.exists():
        raise DataError(f"{path} does not exist: check the spelling, and the folder you are in.")
    if path.is_dir():
        refuse(path, label=label, task=task)
        return load_folder(path, image_size)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: write the data again.")
    if path.suffix.lower() == ".npz":
        refuse(path, label=label, image_size=image_size)
        return load_arrays(path, task)
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        refuse(path, image_size=image_size)
        return load_table(path, label, task)
    raise DataError(f"{path} has the unknown ending {path.suffix!r}: use .npz, .csv, or a folder with a subfolder a class.")


def refuse(data: str | Path, *, label: str | None = None, image_size: int | None = None, task: Task | None = None) -> None:
    """What does not apply to these data, rather than ignore it."""
    if label is not None:
        raise DataError(
            f"label={label!r} does not apply to {data}: tables have columns to predict, and this is none. Leave it out."
        )
    if image_size is not None:
        raise DataError(
            f"image_size={image_size} does not apply to {data}: only pictures in files are resized. Leave it out."
        )
    if task is not None:
        raise DataError(
            f"task={task!r} does not apply to {data}: it is for labels of your own that are numbers. Leave it out."
        )


def load_arrays(path: Path, task: Task | None = None) -> Dataset:
    """An npz of ``x_train, y_train, x_test, y_test``, or of ``x, y``, a fifth of which becomes the test set.

    Inputs are uint8 images ``[n, height, width]`` or ``[n, height, width, channels]``, or numbers ``[n, features]``;
    labels are as :func:`~gradreg.data.labels.task_of` understands them, unless the task is given.
    """
    arrays = read_npz(path)
    if all(key in arrays for key in KEYS):
        return assemble(str(path), *(arrays[key] for key in KEYS), task=task)
    if "x" in arrays and "y" in arrays:
        return assemble_with_test_set(str(path), arrays["x"], arrays["y"], task=task)
    raise DataError(
        f"{path} holds {', '.join(arrays) or 'nothing'}; expected {', '.join(KEYS)}, or x and y: name them so in np.savez."
    )
