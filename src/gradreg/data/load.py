"""From what the user wrote to a dataset."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args

from gradreg.data.authors import SIN_OF_THE_AUTHORS, SUFFIX, as_authors, sin_of_the_authors
from gradreg.data.dataset import Dataset, Task
from gradreg.data.embedded import EMBEDDED
from gradreg.data.errors import DataError
from gradreg.data.hub import PREFIX, load_hub
from gradreg.data.named import NAMED, prepared_path, read_prepared
from gradreg.data.optional import is_installed
from gradreg.data.own import load_own, refuse


def load(
    data: str,
    *,
    data_dir: str | Path | None = None,
    label: str | None = None,
    image_size: int | None = None,
    task: Task | None = None,
) -> Dataset:
    """A dataset by its name, path or address. Never downloads a named one: that is for :func:`~gradreg.data.prepare`.

    Args:
        data: ``digits`` and the other names of :func:`available`; the path of a ``.npz`` file, a ``.csv`` file or a folder
            of pictures; or ``hf:owner/name``. ``mnist@authors``, and likewise ``sin``, ``cifar10`` and ``cifar100``, is what
            the paper's authors drew, seed for seed.
        data_dir: where named datasets are kept; see :func:`find_data_dir`.
        label: for tables, the column to predict.
        image_size: for pictures, the side to resize them to.
        task: for one's own arrays and tables, what their labels mean; see :func:`~gradreg.data.labels.task_of`.

    >>> load("sin").task
    'regression'
    """
    if task not in (None, *get_args(Task)):
        raise DataError(f"task={task!r} is unknown: choose {' or '.join(get_args(Task))}.")
    if data.startswith(PREFIX):
        return load_hub(data, label, image_size, task)
    if data in (*EMBEDDED, SIN_OF_THE_AUTHORS) or data.removesuffix(SUFFIX) in NAMED:
        refuse(data, label=label, image_size=image_size, task=task)
        return _by_name(data, find_data_dir(data_dir))
    if _looks_like_a_path(data):
        return load_own(Path(data).expanduser(), label=label, image_size=image_size, task=task)
    raise _unknown(data)


def _by_name(name: str, data_dir: Path) -> Dataset:
    if name == SIN_OF_THE_AUTHORS:
        return sin_of_the_authors()
    if name in EMBEDDED:
        return EMBEDDED[name].make()
    found = read_prepared(name.removesuffix(SUFFIX), data_dir)
    return as_authors(found) if name.endswith(SUFFIX) else found


def find_data_dir(data_dir: str | Path | None = None) -> Path:
    """The folder of named datasets: as given, or ``$GRADREG_DATA_DIR``, or ``./data`` if it is there, or a cache."""
    if data_dir is not None:
        return Path(data_dir)
    if os.environ.get("GRADREG_DATA_DIR"):
        return Path(os.environ["GRADREG_DATA_DIR"]).expanduser()
    return Path("data") if Path("data").is_dir() else Path.home() / ".cache" / "gradreg"


@dataclass(frozen=True)
class DatasetInfo:
    """A line of the list of datasets.

    Attributes:
        name: what to write to get it.
        kind: embedded, or named and downloaded once.
        description: what it holds.
        ready: whether :func:`load` would find it now.
    """

    name: str
    kind: Literal["embedded", "named"]
    description: str
    ready: bool


def available(data_dir: Path | None = None) -> list[DatasetInfo]:
    """All datasets that have a name.

    >>> [info.name for info in available()]
    ['digits', 'mnist5k', 'sin', 'sin_pairs', 'mnist', 'fashion_mnist', 'cifar10', 'cifar100', 'tinyimagenet']
    """
    folder = find_data_dir(data_dir)
    embedded = [
        DatasetInfo(name, "embedded", one.description, one.package is None or is_installed(one.package))
        for name, one in EMBEDDED.items()
    ]
    named = [
        DatasetInfo(name, "named", one.description, prepared_path(name, folder).is_file()) for name, one in NAMED.items()
    ]
    return embedded + named


def _looks_like_a_path(data: str) -> bool:
    return Path(data).expanduser().exists() or "/" in data or os.sep in data or Path(data).suffix != ""


def _unknown(data: str) -> DataError:
    names = [*EMBEDDED, *NAMED]
    close = "".join(f"Did you mean {match}? " for match in get_close_matches(data, names, n=1))
    return DataError(
        f"{data!r} is no dataset: {close}Choose one of {', '.join(names)}, or give the path of an .npz file, a .csv file "
        f"or a folder of pictures, or {PREFIX}owner/name."
    )
