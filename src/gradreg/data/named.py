"""The public datasets by name: where they live, how to know that they arrived whole, and reading what was prepared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gradreg.data import decode
from gradreg.data.dataset import Array, Dataset
from gradreg.data.decode import Arrays
from gradreg.data.errors import DataError
from gradreg.data.npz import read_npz

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A public dataset.

    Attributes:
        description: one line for people.
        home: address of the folder that holds the archives.
        archives: md5 checksums by file name, as published.
        decode: makes the four arrays from the folder of the downloaded archives.
        num_train, num_test, image_shape: what the arrays look like.
        class_names: in the order of the labels.
        sha256: checksums of the decoded arrays, where they are known.
    """

    description: str
    home: str
    archives: Mapping[str, str]
    decode: Callable[[Path], Arrays]
    num_train: int
    num_test: int
    image_shape: Shape
    class_names: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, Shape]:
        return {
            "x_train": (self.num_train, *self.image_shape),
            "y_train": (self.num_train,),
            "x_test": (self.num_test, *self.image_shape),
            "y_test": (self.num_test,),
        }


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(count))


NAMED: dict[str, Named] = {
    "mnist": Named(
        description="70 000 handwritten digits, 28 x 28",
        home="https://ossci-datasets.s3.amazonaws.com/mnist/",
        archives={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        decode=decode.decode_mnist,
        num_train=60_000,
        num_test=10_000,
        image_shape=(28, 28),
        class_names=_numbers(10),
        sha256={
            "x_train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "y_train": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "x_test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "y_test": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        },
    ),
    "fashion_mnist": Named(
        description="70 000 pictures of clothing, 28 x 28",
        home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        archives={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        decode=decode.decode_mnist,
        num_train=60_000,
        num_test=10_000,
        image_shape=(28, 28),
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        sha256={
            "x_train": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "y_train": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "x_test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "y_test": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        },
    ),
    "cifar10": Named(
        description="60 000 colour photographs of 10 classes, 32 x 32",
        home="https://www.cs.toronto.edu/~kriz/",
        archives={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        decode=decode.decode_cifar10,
        num_train=50_000,
        num_test=10_000,
        image_shape=(32, 32, 3),
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        sha256={
            "x_train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "y_train": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "x_test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "y_test": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        },
    ),
    "cifar100": Named(
        description="60 000 colour photographs of 100 classes, 32 x 32",
        home="https://www.cs.toronto.edu/~kriz/",
        archives={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        decode=decode.decode_cifar100,
        num_train=50_000,
        num_test=10_000,
        image_shape=(32, 32, 3),
        class_names=_numbers(100),
        sha256={
            "x_train": "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "y_train": "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
            "x_test": "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
            "y_test": "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
        },
    ),
    "tinyimagenet": Named(
        description="110 000 colour photographs of 200 classes, 64 x 64",
        home="http://cs231n.stanford.edu/",
        archives={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
        decode=decode.decode_tiny_imagenet,
        num_train=100_000,
        num_test=10_000,
        image_shape=(64, 64, 3),
        class_names=_numbers(200),
    ),
}


def prepared_path(name: str, data_dir: Path) -> Path:
    """Where the arrays of a named dataset are kept."""
    return data_dir / f"{name}.npz"


def read_prepared(name: str, data_dir: Path) -> Dataset:
    """A named dataset from its file of arrays; never downloads."""
    path = prepared_path(name, data_dir)
    if not path.is_file():
        raise DataError(
            f"{name} is not prepared: there is no {path}. Run gradreg data prepare {name} --data-dir {data_dir}, "
            "or copy the file from a machine that has it."
        )
    arrays = read_npz(path)
    check_arrays(name, arrays, str(path))
    return Dataset(
        name=name,
        x_train=arrays["x_train"],
        y_train=arrays["y_train"].astype(np.int64),
        x_test=arrays["x_test"],
        y_test=arrays["y_test"].astype(np.int64),
        class_names=NAMED[name].class_names,
    )


def check_arrays(name: str, arrays: Arrays, where: str) -> None:
    """Raise unless the arrays have the names, shapes, type and range of labels of this dataset."""
    for key, shape in NAMED[name].shapes.items():
        if key not in arrays:
            raise _not_whole(name, where, f"{key} is missing")
        if arrays[key].shape != shape or arrays[key].dtype != np.uint8:
            raise _not_whole(name, where, f"{key} is {_described(arrays[key])}, expected uint8 {shape}")
    num_classes = len(NAMED[name].class_names)
    for key in ("y_train", "y_test"):
        if arrays[key].max() >= num_classes:
            raise _not_whole(name, where, f"{key} has the label {arrays[key].max()}, expected 0 to {num_classes - 1}")


def check_sums(name: str, arrays: Arrays, where: str) -> None:
    """Raise unless the arrays have the checksums that are known."""
    for key, expected in NAMED[name].sha256.items():
        found = hashlib.sha256(np.ascontiguousarray(arrays[key]).tobytes()).hexdigest()
        if found != expected:
            raise _not_whole(name, where, f"{key} has the sha256 checksum {found}, expected {expected}")


def _not_whole(name: str, where: str, what: str) -> DataError:
    return DataError(f"{where} does not hold {name}: {what}. Remove it and run gradreg data prepare {name}.")


def _described(array: Array) -> str:
    return f"{array.dtype} {array.shape}"
