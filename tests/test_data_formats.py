"""Data from files: the published archives, made tiny, and the user's own; whole and damaged."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gradreg.data import DataError, encode_rows, load, prepare
from gradreg.data.decode import decode_cifar10, decode_cifar100, decode_mnist, decode_tiny_imagenet, read_idx
from gradreg.data.named import NAMED

RNG = np.random.default_rng(0)


def images(count: int, *shape: int):
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def same(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)
        assert found[key].dtype == np.uint8


# Archives as they are published, a few images each


def idx(array) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes())


def write_mnist(folder: Path, num_train: int = 12, num_test: int = 5):
    arrays = {
        "x_train": images(num_train, 28, 28),
        "y_train": np.arange(num_train, dtype=np.uint8) % 10,
        "x_test": images(num_test, 28, 28),
        "y_test": np.arange(num_test, dtype=np.uint8),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, key in zip(NAMED["mnist"].archives, arrays, strict=True):
        (folder / file).write_bytes(idx(arrays[key]))
    return arrays


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def cifar_records(x, *labels) -> bytes:
    return np.concatenate([*(y[:, None] for y in labels), x.transpose(0, 3, 1, 2).reshape(len(x), -1)], axis=1).tobytes()


def write_cifar10(folder: Path):
    x, y = images(12, 32, 32, 3), np.arange(12, dtype=np.uint8) % 10
    parts = {f"cifar-10-batches-bin/data_batch_{i + 1}.bin": slice(2 * i, 2 * i + 2) for i in range(5)}
    parts["cifar-10-batches-bin/test_batch.bin"] = slice(10, 12)
    write_tar(folder / "cifar-10-binary.tar.gz", {name: cifar_records(x[part], y[part]) for name, part in parts.items()})
    return {"x_train": x[:10], "y_train": y[:10], "x_test": x[10:], "y_test": y[10:]}


def write_cifar100(folder: Path):
    x, fine = images(6, 32, 32, 3), np.array([99, 3, 50, 0, 7, 12], np.uint8)
    coarse = fine // 5
    parts = {"cifar-100-binary/train.bin": slice(0, 4), "cifar-100-binary/test.bin": slice(4, 6)}
    members = {name: cifar_records(x[part], coarse[part], fine[part]) for name, part in parts.items()}
    write_tar(folder / "cifar-100-binary.tar.gz", members)
    return {"x_train": x[:4], "y_train": fine[:4], "x_test": x[4:], "y_test": fine[4:]}


def jpeg(grey: int, mode: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new(mode, (64, 64), grey if mode == "L" else (grey, grey, grey)).save(file, "JPEG")
    return file.getvalue()


def write_tiny_imagenet(folder: Path, label: str = "n02"):
    members = {
        "wnids.txt": b"n02\nn01\n",
        "train/n02/images/n02_0.JPEG": jpeg(20, "RGB"),
        "train/n01/images/n01_1.JPEG": jpeg(11, "L"),
        "train/n01/images/n01_0.JPEG": jpeg(10, "RGB"),
        "train/n01/n01_boxes.txt": b"",
        "val/images/val_1.JPEG": jpeg(31, "RGB"),
        "val/images/val_0.JPEG": jpeg(30, "RGB"),
        "val/val_annotations.txt": f"val_0.JPEG\t{label}\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n".encode(),
        "test/images/test_0.JPEG": b"unlabelled",
    }
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)


def test_mnist(tmp_path: Path) -> None:
    wanted = write_mnist(tmp_path)
    same(decode_mnist(tmp_path), wanted)


@pytest.mark.parametrize(("write", "decode"), [(write_cifar10, decode_cifar10), (write_cifar100, decode_cifar100)])
def test_cifar(write, decode, tmp_path: Path) -> None:
    wanted = write(tmp_path)
    same(decode(tmp_path), wanted)


def test_tiny_imagenet(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    arrays = decode_tiny_imagenet(tmp_path)
    assert arrays["x_train"].shape == (3, 64, 64, 3)
    assert arrays["x_train"][:, 0, 0, 0].tolist() == [10, 11, 20]
    assert arrays["y_train"].tolist() == [0, 0, 1]
    assert arrays["x_test"][:, 0, 0, 2].tolist() == [30, 31]
    assert arrays["y_test"].tolist() == [1, 0]
    assert arrays["y_test"].dtype == np.uint8


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "content",
    [
        idx(images(9, 28, 28))[:3000],
        b"<html>404</html>",
        b"",
        gzip.compress(b"\0\0\x0d\x01" + struct.pack(">I", 1) + b"1234"),
        gzip.compress(gzip.decompress(idx(images(3, 28, 28)))[:-5]),
    ],
    ids=["truncated", "page", "empty", "float", "short"],
)
def test_damaged_idx(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"images.gz cannot be decoded .*damaged or incomplete. Remove it and run"):
        read_idx(path)


def test_damaged_archives(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    truncated(tmp_path / "cifar-10-binary.tar.gz")
    write_tar(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": bytes(3074)})
    write_tiny_imagenet(tmp_path)
    truncated(tmp_path / "tiny-imagenet-200.zip")
    for decode in (decode_cifar10, decode_cifar100, decode_tiny_imagenet):
        with pytest.raises(DataError, match="cannot be decoded"):
            decode(tmp_path)
    write_tiny_imagenet(tmp_path, label="n99")
    with pytest.raises(DataError, match="KeyError: 'n99'"):
        decode_tiny_imagenet(tmp_path)
    write_tar(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": bytes(3073)})
    with pytest.raises(DataError, match="cannot reshape"):
        decode_cifar100(tmp_path)


# Downloads, from a server on this machine


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Iterator[Callable[..., dict]]:
    """Serves a tiny MNIST in place of the real one; called to change what is expected of it."""
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args) -> None:
            pass

    arrays = write_mnist(tmp_path / "home")
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "home")))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def expect(**changes):
        archives = {
            path.name: hashlib.md5(path.read_bytes()).hexdigest()
            for path in (tmp_path / "home" / file for file in NAMED["mnist"].archives)
        }
        known = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in arrays.items()}
        address = f"http://127.0.0.1:{server.server_port}/"
        tiny = {"home": address, "archives": archives, "num_train": 12, "num_test": 5, "sha256": known}
        monkeypatch.setitem(NAMED, "mnist", replace(NAMED["mnist"], **tiny | changes))
        return arrays

    expect()
    yield expect
    server.shutdown()
    thread.join()
    server.server_close()


def test_prepare(home, tmp_path: Path, capfd) -> None:
    wanted = home()
    path = prepare("mnist", tmp_path / "new" / "data", progress=False)
    assert path == tmp_path / "new" / "data" / "mnist.npz"
    assert sorted(one.name for one in path.parent.iterdir()) == ["archives", "mnist.npz"]
    same(dict(np.load(path)), wanted)
    data = load("mnist", data_dir=path.parent)
    assert data.class_names == tuple("0123456789")
    assert data.y_train.dtype == np.int64
    assert capfd.readouterr() == ("", "")


def test_prepare_shows_progress(home, tmp_path: Path, capfd) -> None:
    pytest.importorskip("rich")
    prepare("mnist", tmp_path)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert all(file in shown.err for file in NAMED["mnist"].archives)


def test_prepare_uses_what_is_there(home, tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", **home(home="http://127.0.0.1:1/"))
    before = (tmp_path / "mnist.npz").stat()
    assert prepare("mnist", tmp_path).stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"archives": {"train-images-idx3-ubyte.gz": "0" * 32}},
            "could not be downloaded.*does not match.*Try again, or copy",
        ),
        ({"archives": {"absent.gz": "0" * 32}}, "absent.gz could not be downloaded.*404"),
        ({"home": "http://127.0.0.1:1/"}, "could not be downloaded"),
        ({"sha256": {"y_test": "0" * 64}}, "does not hold mnist: y_test has the sha256 checksum .*expected 000"),
        ({"class_names": ("0", "1", "2")}, "y_train has the label 9, expected 0 to 2"),
        ({"num_train": 13}, r"x_train is uint8 \(12, 28, 28\), expected uint8 \(13, 28, 28\)"),
    ],
)
def test_prepare_fails_without_leaving_a_file(home, changes, message: str, tmp_path: Path) -> None:
    home(**changes)
    with pytest.raises(DataError, match=message):
        prepare("mnist", tmp_path, progress=False)
    assert not (tmp_path / "mnist.npz").exists()


def test_prepare_unknown(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'cifar' cannot be downloaded: choose one of mnist.*Did you mean cifar10"):
        prepare("cifar", tmp_path)


def test_prepared_file_that_is_something_else(home, tmp_path: Path) -> None:
    arrays = home()
    path = tmp_path / "mnist.npz"
    np.savez(path, **{key: array for key, array in arrays.items() if key != "y_test"})
    with pytest.raises(
        DataError, match=r"does not hold mnist: y_test is missing. Remove it and run gradreg data prepare mnist"
    ):
        load("mnist", data_dir=tmp_path)
    np.savez(path, **arrays | {"y_train": arrays["y_train"] + np.uint8(100)})
    with pytest.raises(DataError, match="y_train has the label 109, expected 0 to 9"):
        load("mnist", data_dir=tmp_path)
    np.savez(path, **arrays | {"x_test": arrays["x_test"] / 255})
    with pytest.raises(DataError, match="x_test is float64"):
        load("mnist", data_dir=tmp_path)
    np.savez(path, **arrays)
    truncated(path)
    with pytest.raises(DataError, match="cannot be read as npz.*damaged"):
        load("mnist", data_dir=tmp_path)


# The user's own: npz


@pytest.fixture
def npz(tmp_path: Path):
    def write_and_load(*, task: str | None = None, **arrays):
        np.savez(tmp_path / "my.npz", **arrays)
        return load(str(tmp_path / "my.npz"), task=task)

    return write_and_load


def four(x_train, y_train, x_test=None, y_test=None):
    return {
        "x_train": x_train,
        "y_train": y_train,
        "x_test": x_train if x_test is None else x_test,
        "y_test": y_train if y_test is None else y_test,
    }


LABELS = np.array([7, -2, 7, 30])
FEATURES = np.arange(8.0).reshape(4, 2)


def test_npz_of_images(npz) -> None:
    data = npz(**four(images(4, 6, 5, 3), LABELS))
    assert data.is_image
    assert data.input_shape == (3, 6, 5)
    assert data.y_train.tolist() == [1, 0, 1, 2]
    assert data.class_names == ("-2", "7", "30")


def test_npz_of_features(npz) -> None:
    data = npz(**four(FEATURES, np.array(["b", "a", "b", "c"]), FEATURES[:1], np.array([b"c"])))
    assert data.x_train.dtype == np.float32
    assert data.y_test.tolist() == [2]
    assert data.class_names == ("a", "b", "c")
    assert npz(**four(FEATURES.astype(np.uint8), LABELS[:, None])).x_train.dtype == np.float32


def test_npz_of_regression(npz) -> None:
    x = np.arange(21) / 2
    data = npz(**four(x, x))
    assert data.task == "regression"
    assert data.x_train.shape == data.y_train.shape == (21, 1)
    assert npz(**four(FEATURES, FEATURES)).num_outputs == 2


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([0.0, 1.0], ("0", "1")),
        ([-1.0, 10.0, 9.0], ("-1", "9", "10")),
        ([0.0, 0.5, 1.0], ("0", "0.5", "1")),
        ([*range(30)], tuple(map(str, range(30)))),
        ([*map(float, range(30))], tuple(map(str, range(30)))),
        ([i / 4 for i in range(20)], 20),
        ([i / 4 for i in range(21)], "regression"),
    ],
    ids=str,
)
def test_numbers_mean_the_same_in_arrays_and_in_tables(npz, table, values, found) -> None:
    """Whole values are classes, many different fractions a quantity."""
    y = np.array(values * 10)
    in_table = "x,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate(y))
    for data in (npz(x=np.arange(len(y)), y=y), npz(x=np.arange(len(y)), y=y[:, None]), table(in_table)):
        assert found in (data.task, data.class_names, data.num_outputs)
        told = np.array([float(name) for name in data.class_names])[data.y_train] if data.class_names else data.y_train[:, 0]
        np.testing.assert_array_equal(told, y[data.x_train[:, 0].astype(int)])


def test_a_task_that_is_given(npz, table) -> None:
    ages = np.tile(np.arange(20, 60), 5)
    in_table = "x,age\n" + "".join(f"{i},{age}\n" for i, age in enumerate(ages))
    for read in (partial(npz, x=np.arange(200), y=ages), partial(table, in_table)):
        assert read().num_outputs == 40
        quantity = read(task="regression")
        assert (quantity.task, quantity.num_outputs) == ("regression", 1)
        np.testing.assert_array_equal(quantity.y_train[:, 0], ages[quantity.x_train[:, 0].astype(int)])
        assert quantity.fingerprint != read().fingerprint == read(task="classification").fingerprint
    assert npz(x=np.arange(210), y=np.tile(np.arange(21) / 2, 10), task="classification").num_outputs == 21
    assert npz(**four(FEATURES, np.eye(4)), task="regression").num_outputs == 4
    with pytest.raises(DataError, match="task='ranking' is unknown: choose classification or regression"):
        npz(**four(FEATURES, LABELS), task="ranking")
    with pytest.raises(DataError, match=r"y_train is <U1 \(4,\); expected regression targets.*task='classification'"):
        npz(**four(FEATURES, np.array(["a", "b", "a", "b"])), task="regression")
    with pytest.raises(DataError, match="line 3: column 'age' is 'old', which is no number to predict"):
        table("x,age\n1,23\n2,old\n3,24\n", task="regression")


def test_many_kinds_of_texts_are_classes_if_that_is_said(npz, picture, tmp_path: Path) -> None:
    names = np.array([f"n{i // 2}" for i in range(60)])
    assert npz(x=np.arange(60), y=names, task="classification").num_outputs == 30
    with pytest.raises(DataError, match="y has 30 different texts"):
        npz(x=np.arange(60), y=names)
    for i, name in enumerate(names):
        picture(f"pictures/{name}/{i}.png")
    assert load(str(tmp_path / "pictures")).num_outputs == 30


def test_numbers_with_commas_are_classes_if_that_is_said(table) -> None:
    assert table("a;grade\n1;2,5\n2;3\n3;2,5\n4;3\n", task="classification").class_names == ("2,5", "3")


def test_npz_without_test_set(npz) -> None:
    x, y = np.arange(50.0)[:, None], np.arange(50) % 5
    data = npz(x=x, y=y)
    assert (len(data.x_train), len(data.x_test)) == (40, 10)
    assert sorted([*data.x_train[:, 0], *data.x_test[:, 0]]) == x[:, 0].tolist()
    assert data.fingerprint == npz(x=x, y=y).fingerprint
    once = npz(x=x, y=np.arange(50) // 49)
    assert once.num_outputs == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            four(np.where(FEATURES == 3, np.nan, FEATURES), LABELS),
            r"x_train has nan in row 1, column 1 \(1 in all.*Remove those",
        ),
        (four(FEATURES * 1e300, LABELS), "x_train has inf"),
        (four(FEATURES, np.array([1.0, np.nan, 2.0, 3.0])), "y_train has nan in row 1"),
        (four(FEATURES, np.full(4, 3)), "all training examples are of class 3.*Add another class"),
        (four(FEATURES, LABELS, y_test=LABELS + 1), "y_test has labels that y_train lacks: -1, 8, 31.*Correct the labels"),
        (four(FEATURES, LABELS[:3]), r"inputs have shape \(4, 2\) and the labels \(3,\)"),
        (
            four(FEATURES, LABELS, FEATURES[:, :1]),
            r"training example is float64 \(2,\) and a test example is float64 \(1,\)",
        ),
        (four(FEATURES, LABELS, FEATURES[:0], LABELS[:0]), "has no test examples"),
        (four(FEATURES, np.eye(4, dtype=int)), r"y_train is int64 \(4, 4\).*y.argmax\(1\)"),
        (four(FEATURES, np.eye(4)), r"y_train is float64 \(4, 4\).*y.argmax\(1\)"),
        ({"x": FEATURES, "y": np.eye(4)}, r"y is float64 \(4, 4\).*y.argmax\(1\)"),
        (four(FEATURES, np.arange(4.0), y_test=np.full(4, 0.5)), "lacks: 0.5.*4 classes, 0 to 3.*say task='regression'"),
        (
            {"x": np.arange(100.0), "y": np.arange(100) // 4 * 1.0},
            "y has 25 different whole numbers in 100 rows.*task='regression'.*if they are classes, task='classification'",
        ),
        (four(np.zeros((4, 5, 5)), LABELS), r"float64 \(4, 5, 5\).*Store images as uint8 .*channels last"),
        (four(images(4, 3, 8, 8), LABELS), r"Put the channels last: x_train.transpose\(0, 2, 3, 1\)"),
        (four(np.array([["a"], ["b"], ["c"], ["d"]]), LABELS), "x_train is <U1, expected numbers"),
        (four(FEATURES, np.array(["a", None, "b", "c"], object)), "cannot be read as npz.*as np.array"),
        ({"images": FEATURES, "y": LABELS}, "holds images, y; expected x_train, y_train, x_test, y_test, or x and y"),
        ({}, "holds nothing"),
        ({"x": FEATURES[:0], "y": LABELS[:0]}, "has no"),
        ({"x": FEATURES[:1], "y": LABELS[:1]}, "has 1 example"),
    ],
)
def test_unusable_npz(npz, arrays, message: str) -> None:
    with pytest.raises(DataError, match=message):
        npz(**arrays)


def test_unusable_files(tmp_path: Path) -> None:
    np.save(npy := io.BytesIO(), FEATURES)
    for name, content, message in [
        ("a.npz", b"", "a.npz is empty: write the data again"),
        ("b.npz", b"text", "cannot be read as npz"),
        ("array.npz", npy.getvalue(), "cannot be read as npz"),
        ("c.parquet", b"data", "unknown ending '.parquet': use .npz, .csv"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(str(tmp_path / name))
    with pytest.raises(DataError, match="does not exist"):
        load(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("data", "given"),
    [
        ("digits", {"label": "y"}),
        ("digits", {"image_size": 8}),
        ("digits", {"task": "regression"}),
        ("my.npz", {"label": "y"}),
        ("", {"label": "y"}),
        ("", {"task": "classification"}),
    ],
)
def test_what_does_not_apply_is_refused(tmp_path: Path, data: str, given) -> None:
    np.savez(tmp_path / "my.npz", x=np.eye(4), y=np.array([0, 1, 0, 1]))
    where = data if data == "digits" else str(tmp_path / data)
    with pytest.raises(DataError, match=f"{next(iter(given))}=.* does not apply to .*Leave it out"):
        load(where, **given)


# The user's own: tables


@pytest.fixture
def table(tmp_path: Path):
    def write_and_load(text: str, label: str | None = None, task: str | None = None):
        (tmp_path / "my.csv").write_text(text, encoding="utf-8")
        return load(str(tmp_path / "my.csv"), label=label, task=task)

    return write_and_load


PETS = "weight,colour,kind\n1.5,red,cat\n2,blue,dog\n3,red,cat\n4,green,dog\n5e-1,red,cat\n"


def test_table(table) -> None:
    data = table(PETS)
    assert data.task == "classification"
    assert data.class_names == ("cat", "dog")
    assert data.input_shape == (4,)
    assert data.columns == {"weight": (), "colour": ("blue", "green", "red")}
    rows = np.concatenate([data.x_train, data.x_test])
    assert [1.5, 0, 0, 1] in rows.tolist()
    assert [4, 0, 1, 0] in rows.tolist()


def test_new_rows_are_encoded_as_those_of_the_table(table) -> None:
    data = table(PETS)
    rows = list(csv.DictReader(io.StringIO(PETS)))
    wanted = np.concatenate([data.x_train, data.x_test])
    assert sorted(encode_rows(rows, data.columns).tolist()) == sorted(wanted.tolist())
    assert encode_rows([{"colour": " red ", "weight": 2}], data.columns).tolist() == [[2, 0, 0, 1]]
    assert encode_rows([], data.columns).shape == (0, 4)
    for row, message in [
        ({"weight": 1}, "row 0 has no 'colour', and the columns are weight, colour: give all"),
        ({"weight": 1, "colour": "pink"}, "row 0: column 'colour' is 'pink', which no example had: choose one of blue, gr"),
        ({"weight": "1,5", "colour": "red"}, "row 0: column 'weight' is '1,5', expected a finite number"),
        ({"weight": None, "colour": "red"}, "column 'weight' is 'None'"),
    ]:
        with pytest.raises(DataError, match=message):
            encode_rows([row], data.columns)


def test_table_label_column(table) -> None:
    assert table(PETS, label="colour").class_names == ("blue", "green", "red")
    assert table("a,rank\n" + "1,2\n1,3\n1,4\n1,ace\n" * 3, task="classification").class_names == ("2", "3", "4", "ace")
    assert table("Y,a\n1,2\n0,3\n1,4\n0,5\n").class_names == ("0", "1")
    assert table("\ufeffa;b\nlight,red;x\nred;z\nlight,red;x\nred;z\n\n").input_shape == (2,)
    with pytest.raises(DataError, match="label='kin' is no column of .*choose one of weight, colour, kind"):
        table(PETS, label="kin")


def test_table_has_no_pictures_to_resize(table, tmp_path: Path) -> None:
    table(PETS)
    with pytest.raises(DataError, match="image_size=8 does not apply"):
        load(str(tmp_path / "my.csv"), image_size=8)


def test_table_regression(table) -> None:
    data = table("x,price\n" + "".join(f"{i},{i * 1.5}\n" for i in range(40)))
    assert data.task == "regression"
    assert data.y_train.shape == (32, 1)
    few = table("x,grade\n" + "".join(f"{i},{i % 3 / 2}\n" for i in range(40)))
    assert few.class_names == ("0", "0.5", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PETS + "7,,cat\n", r"line 7: column 'colour' has no value \(''\). Fill it in"),
        (PETS + "NaN,red,cat\n", "line 7: column 'weight' has no value"),
        (PETS + "oops,red,cat\n", "line 7: column 'weight' is 'oops', and most of its cells are numbers. Correct it"),
        (PETS.replace("2,", "-,"), "line 3: column 'weight' is '-', and most"),
        (PETS.replace("2,", '"1,5",'), "line 3: column 'weight' is '1,5', and most of .* point"),
        ("a,price\n1,2.5\n1,3.5\n1,free\n", "line 4: column 'price' is 'free', which is no number to predict"),
        (PETS + "inf,red,cat\n", "line 7: column 'weight' is inf"),
        (PETS + "7,red\n", "line 7 has 2 cells and the header has 3"),
        ("a,b\n", "has 1 lines: expected a header line"),
        ("a\n1\n", "column 'a' alone"),
        ("1,2\n3,4\n", "begins with numbers: add a header line that names the 2 columns"),
        (PETS.replace("2,", '"2,'), r"unclosed quote in line 3 \(.*\). Close it"),
        (PETS.replace("2,", '"2,') * 5000, r"unclosed quote in line 3 \("),
        (PETS + '"red" one,red,cat\n', "unclosed quote in line 7 "),
        ("a,b,a\n1,2,0\n3,4,1\n", "has two columns 'a': give each a name of its own"),
        (
            "1.5,red,cat\n2,blue,dog\n3,red,cat\n",
            r"begins with 1.5, red, cat, which looks like an example \('red' is also .*add a header line.* 3 columns",
        ),
        ("a,label\n1,x\n2,z\n", "2 examples of 2 classes: with 1 for testing, 1 cannot show every class. Add examples"),
        ("a,label\n1,x\n2,x\n", "all training examples are of class x"),
        (
            "id,label\n" + "".join(f"p{i},{i % 2}\n" for i in range(101)),
            "'id' has 101 different texts, such as 'p0'.*Remove the",
        ),
        (
            "a,price\n" + "".join(f"1,{i}\n" for i in range(30)),
            "'price' has 30 different whole numbers in 30 rows.*say task='regression'",
        ),
        (
            "a,id\n" + "".join(f"1,n{i}\n" for i in range(30)),
            "'id' has 30 different texts, such as 'n0', in 30 rows.*predict another column.*task='classification'",
        ),
        ("a;price\n1;2,5\n1;3\n1;4,75\n", "line 2: column 'price' is '2,5', a number with a comma. Write .*classes"),
        ("a;kind\n2;x\n1.234,5;y\n1,5;y\n", "line 3: column 'a' is '1.234,5', a number with a comma.*in another way"),
    ],
)
def test_unusable_table(table, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table(text)


def test_table_with_blank_lines(table) -> None:
    scattered = "\n" + PETS.replace("3,red", "\n  \n,,\n3,red") + "\n"
    assert table(scattered).fingerprint == table(PETS).fingerprint
    with pytest.raises(DataError, match="line 8: column 'weight' is 'oops'"):
        table(scattered.replace("3,red", "oops,red"))


def test_table_whose_columns_are_called_by_numbers(table) -> None:
    assert table("0,1,colour,label\n" + "1,2,red,x\n3,4,blue,z\n" * 3).input_shape == (4,)


def test_table_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("a,label\n1,é\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text"):
        load(str(tmp_path / "a.csv"))


# The user's own: pictures


@pytest.fixture
def picture(tmp_path: Path):
    image = pytest.importorskip("PIL.Image")

    def write(name: str, mode: str = "RGB", size: tuple[int, int] = (6, 4), colour: int = 0) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.new(mode, size, colour).save(tmp_path / name)

    return write


def test_folder(picture, tmp_path: Path) -> None:
    for i in range(5):
        picture(f"cat/{i}.png", "L", colour=i)
        picture(f"dog/{i}.JPG", "L", (12, 8), colour=100 + i)
    (tmp_path / "cat" / "notes.txt").touch()
    data = load(str(tmp_path))
    assert data.input_shape == (1, 4, 6)
    assert data.class_names == ("cat", "dog")
    assert (len(data.x_train), len(data.x_test)) == (8, 2)
    assert ((data.x_train.mean((1, 2)) > 50) == data.y_train).all()
    assert load(str(tmp_path), image_size=3).input_shape == (1, 3, 3)
    picture("dog/colour.png", "P")
    assert load(str(tmp_path)).input_shape == (3, 4, 6)


def test_folder_with_test_set(picture, tmp_path: Path) -> None:
    for part, count in [("train", 3), ("test", 1)]:
        for kind in "ab":
            for i in range(count):
                picture(f"{part}/{kind}/{i}.png", "RGBA")
    data = load(str(tmp_path))
    assert (len(data.x_train), len(data.x_test)) == (6, 2)
    assert data.input_shape == (3, 4, 6)
    picture("test/c/0.png")
    with pytest.raises(DataError, match="y_test has labels that y_train lacks: c"):
        load(str(tmp_path))


def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for kind, value in [("dark", 256), ("light", 65535)]:
        (tmp_path / kind).mkdir()
        for i in range(2):
            image.fromarray(np.full((2, 2), value, np.uint16)).save(tmp_path / kind / f"{i}.png")
    data = load(str(tmp_path))
    assert set(np.unique(np.concatenate([data.x_train, data.x_test]))) == {1, 255}


def test_unusable_folder(picture, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no subfolders: expected one for each class"):
        load(str(tmp_path))
    picture("cat/0.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match="dog has no pictures.*add some"):
        load(str(tmp_path))
    picture("dog/0.png")
    truncated(tmp_path / "dog" / "0.png")
    with pytest.raises(DataError, match=r"0.png cannot be read as an image.*damaged"):
        load(str(tmp_path))


# The hub, with a stand-in for the package


class Rows:
    """As datasets.Dataset: rows by number, columns by name."""

    def __init__(self, names: list[str] | None = None, **columns: list) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": SimpleNamespace(names=names)} if names else {}

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {name: column[key] for name, column in self.columns.items()}


@pytest.fixture
def hub(monkeypatch):
    def offer(**splits: Rows) -> None:
        module = ModuleType("datasets")

        def load_dataset(name: str):
            if name != "owner/name":
                raise FileNotFoundError(f"no dataset {name}")
            return splits

        module.load_dataset = load_dataset
        monkeypatch.setitem(sys.modules, "datasets", module)

    return offer


def test_hub_images(hub) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures = [image.new("RGB", (6, 4), (i, i, i)) for i in range(4)]
    train = Rows(["dog", "cat"], image=pictures, label=[0, 1, 0, 1])
    hub(train=train, test=Rows(["dog", "cat"], image=[image.new("L", (9, 9), 7)], label=[1]))
    data = load("hf:owner/name")
    assert data.class_names == ("cat", "dog")
    assert data.input_shape == (3, 4, 6)
    assert data.y_train.tolist() == [1, 0, 1, 0]
    assert data.x_test[0, 0, 0].tolist() == [7, 7, 7]
    hub(train=train, test=Rows(image=pictures, label=[-1] * 4))
    assert len(load("hf:owner/name", image_size=2).x_train) == 3


def test_hub_numbers(hub) -> None:
    hub(train=Rows(a=[1, 2, 3, 4], b=[0.5, 1.5, 2.5, 3.5], text=["x"] * 4, price=[1.0, 2.0, 3.0, 4.0]))
    data = load("hf:owner/name", label="price", task="regression")
    assert data.task == "regression"
    assert data.input_shape == (2,)


def test_unusable_hub(hub) -> None:
    hub(train=Rows(text=["a", "b"], label=[0, 1]))
    with pytest.raises(DataError, match="none of text, label holds images or numbers"):
        load("hf:owner/name")
    with pytest.raises(DataError, match="label='kind' is no column: name one of text, label"):
        load("hf:owner/name", label="kind")
    with pytest.raises(DataError, match="hf:owner/other could not be loaded .no dataset owner/other.: check its name"):
        load("hf:owner/other")
    hub(test=Rows(a=[1], label=[0]))
    with pytest.raises(DataError, match="has the splits test and no train"):
        load("hf:owner/name")
