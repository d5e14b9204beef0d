"""The published formats, read without pickle: IDX (MNIST), CIFAR's binary version, and TinyImageNet's zip."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np

from gradreg.data.dataset import Array
from gradreg.data.errors import DataError
from gradreg.data.optional import require

Arrays = dict[str, Array]

IDX_UINT8 = 8
CIFAR_IMAGE = (3, 32, 32)
TINY_FOLDER = PurePosixPath("tiny-imagenet-200")


def decode_mnist(folder: Path) -> Arrays:
    """From the four gzipped IDX files of MNIST and of Fashion-MNIST."""
    return {
        "x_train": read_idx(folder / "train-images-idx3-ubyte.gz"),
        "y_train": read_idx(folder / "train-labels-idx1-ubyte.gz"),
        "x_test": read_idx(folder / "t10k-images-idx3-ubyte.gz"),
        "y_test": read_idx(folder / "t10k-labels-idx1-ubyte.gz"),
    }


def decode_cifar10(folder: Path) -> Arrays:
    """From ``cifar-10-binary.tar.gz``."""
    train = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    return _decode_cifar(folder / "cifar-10-binary.tar.gz", train, "cifar-10-batches-bin/test_batch.bin", label_bytes=1)


def decode_cifar100(folder: Path) -> Arrays:
    """From ``cifar-100-binary.tar.gz``, with the 100 fine labels."""
    archive = folder / "cifar-100-binary.tar.gz"
    return _decode_cifar(archive, ["cifar-100-binary/train.bin"], "cifar-100-binary/test.bin", label_bytes=2)


def decode_tiny_imagenet(folder: Path) -> Arrays:
    """From ``tiny-imagenet-200.zip``; its validation images, the only others with labels, become the test set."""
    path = folder / "tiny-imagenet-200.zip"
    with _damage_reported(path), zipfile.ZipFile(path) as archive:
        wnids = sorted(archive.read(str(TINY_FOLDER / "wnids.txt")).decode().split())
        train, test = _tiny_train_files(archive), _tiny_validation_files(archive)
        return {
            "x_train": _read_jpegs(archive, (name for name, _ in train)),
            "y_train": _positions(wnids, (wnid for _, wnid in train)),
            "x_test": _read_jpegs(archive, (name for name, _ in test)),
            "y_test": _positions(wnids, (wnid for _, wnid in test)),
        }


def read_idx(path: Path) -> Array:
    """An IDX file of unsigned bytes: two zeros, the type, the number of dimensions, their lengths, and the values."""
    with _damage_reported(path), gzip.open(path) as file:
        data = file.read()
        if len(data) < 4 or data[:2] != b"\0\0" or data[2] != IDX_UINT8:
            raise ValueError("it does not begin as an IDX file of unsigned bytes does")
        ndim = data[3]
        shape = np.frombuffer(data, ">u4", count=ndim, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * ndim).reshape(shape)


def _decode_cifar(path: Path, train: list[str], test: str, label_bytes: int) -> Arrays:
    with _damage_reported(path), tarfile.open(path) as archive:
        parts = [_read_cifar(archive, name, label_bytes) for name in [*train, test]]
    x_train, y_train = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return {"x_train": x_train, "y_train": y_train, "x_test": parts[-1][0], "y_test": parts[-1][1]}


def _read_cifar(archive: tarfile.TarFile, name: str, label_bytes: int) -> tuple[Array, Array]:
    """Images and labels of one file of records: the label (coarse and fine for CIFAR-100), then three colour planes."""
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    record = label_bytes + int(np.prod(CIFAR_IMAGE))
    records = np.frombuffer(file.read(), np.uint8).reshape(-1, record)
    images = records[:, label_bytes:].reshape(-1, *CIFAR_IMAGE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, label_bytes - 1].copy()


def _tiny_train_files(archive: zipfile.ZipFile) -> list[tuple[str, str]]:
    """Names and classes, sorted: ``train/<wnid>/images/*.JPEG``."""
    images = sorted(name for name in archive.namelist() if PurePosixPath(name).match(f"{TINY_FOLDER}/train/*/images/*.JPEG"))
    return [(name, PurePosixPath(name).parts[2]) for name in images]


def _tiny_validation_files(archive: zipfile.ZipFile) -> list[tuple[str, str]]:
    """Names and classes in the order of ``val/val_annotations.txt``, whose lines are: name, wnid, bounding box."""
    lines = archive.read(str(TINY_FOLDER / "val" / "val_annotations.txt")).decode().splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    return [(str(TINY_FOLDER / "val" / "images" / row[0]), row[1]) for row in rows]


def _read_jpegs(archive: zipfile.ZipFile, names: Iterable[str]) -> Array:
    image = require("PIL.Image", "cli")
    # A few hundred of the images are grey.
    return np.stack([np.asarray(image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names])


def _positions(wnids: list[str], labels: Iterable[str]) -> Array:
    position = {wnid: i for i, wnid in enumerate(wnids)}
    return np.array([position[label] for label in labels], np.uint8)


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """All the ways in which a damaged archive shows become one error."""
    try:
        yield
    except DataError:
        raise
    except (OSError, EOFError, KeyError, IndexError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be decoded ({type(error).__name__}: {error}): it is damaged or incomplete. "
            "Remove it and run gradreg data prepare again."
        ) from error
