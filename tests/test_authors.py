"""What the paper's authors drew: their seeds give today what they gave then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gradreg.data import Dataset, load, split
from gradreg.data.authors import as_authors
from gradreg.data.errors import DataError
from gradreg.data.splits import default_sizes
from gradreg.models import lenet
from gradreg.models.init import initialise_by_numpy
from gradreg.papers.experiment import distinct_runs
from gradreg.papers.tuned import can_be_tuned
from gradreg.papers.varga2018 import experiments
from gradreg.papers.varga2018.deviations import SEEDS
from gradreg.training import RunConfig
from gradreg.training.run import initial_model
from gradreg.training.schedule import batches


def numbered(name: str, num_train: int) -> Dataset:
    """Pictures of one pixel each; the label is the row, so that rows can be told apart."""
    labels = np.arange(num_train, dtype=np.int64)
    pixels = np.zeros((num_train, 1, 1), dtype=np.uint8)
    return Dataset(name=name, x_train=pixels, y_train=labels, x_test=pixels[:7], y_test=labels[:7], class_names=("0", "1"))


def test_a_seed_draws_the_images_that_it_drew_for_the_authors() -> None:
    mnist = as_authors(numbered("mnist", 60_000))
    rows = split(mnist, train_size=2000, validation_size=0, seed=1).train
    assert len(set(rows)) == 2000
    assert mnist.y_train[rows][:5].tolist() == [26247, 35067, 34590, 16668, 12196]


def test_mnist_is_tested_on_the_last_training_images_and_cifar_on_its_own() -> None:
    mnist, cifar = as_authors(numbered("mnist", 60_000)), as_authors(numbered("cifar10", 50_000))
    assert (mnist.y_test[0], mnist.y_test[-1], len(mnist.y_train)) == (50_000, 59_999, 50_000)
    assert (len(cifar.y_test), len(cifar.y_train), cifar.name) == (7, 50_000, "cifar10@authors")


def test_initial_weights_are_drawn_layer_after_layer_in_the_layout_of_tensorflow() -> None:
    model = lenet()
    initialise_by_numpy(model, 1)
    draws = np.random.RandomState(1)
    shapes = {
        "conv1": (5, 5, 1, 6),
        "conv2": (5, 5, 6, 16),
        "conv3": (5, 5, 16, 120),
        "dense1": (120, 84),
        "dense2": (84, 10),
    }
    for name, shape in shapes.items():
        fan_in, fan_out = np.prod(shape[:-1]), np.prod(shape[:-2], dtype=int) * shape[-1]
        deviation = np.sqrt((4 if len(shape) == 4 else 2) / (fan_in + fan_out))
        expected = draws.uniform(-deviation * np.sqrt(3), deviation * np.sqrt(3), shape)
        found = model.get_submodule(name).weight.detach().numpy()
        there = expected.transpose(3, 2, 0, 1) if len(shape) == 4 else expected.T
        np.testing.assert_allclose(found, there, rtol=1e-6)
    assert model.conv1.weight[:2, 0, 0, 0].tolist() == pytest.approx([-0.043457, 0.115389], abs=1e-6)


def test_a_run_on_such_data_starts_from_those_weights() -> None:
    data = replace(as_authors(numbered("mnist", 60_000)), x_train=np.zeros((50_000, 28, 28), dtype=np.uint8))
    config = RunConfig(data=data.name, fingerprint="", model="lenet", seed=3, train_size=10, validation_size=0)
    expected = lenet(num_classes=2)
    initialise_by_numpy(expected, 3)
    for found, other in zip(initial_model(config, data).parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, other)


def test_sin_is_that_of_their_seed_tested_where_the_printed_errors_are_of() -> None:
    sin = load("sin@authors")
    np.random.seed(10)  # noqa: NPY002
    x = np.random.uniform(low=-1, size=(100, 1))  # noqa: NPY002
    y = np.sin(5 * x) + 0.1 * np.random.normal(size=(100, 1))  # noqa: NPY002
    np.testing.assert_allclose(sin.x_train, x, rtol=1e-6)
    np.testing.assert_allclose(sin.y_train, y, rtol=1e-5)
    np.testing.assert_allclose(sin.x_test.flatten()[[0, -1]], [-1 + 850 / 450, -1 + 899 / 450], rtol=1e-6)
    assert len(sin.x_test) == 50


def test_ones_own_model_keeps_its_weights() -> None:
    config = RunConfig(data="sin@authors", fingerprint="", model="test_authors:sevens", train_size=100, validation_size=0)
    assert (initial_model(config, load("sin@authors")).weight == 7).all()


def sevens(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    layer = nn.Linear(*input_shape, num_outputs)
    nn.init.constant_(layer.weight, 7)
    return layer


def test_all_of_their_points_are_trained_on_by_default() -> None:
    assert default_sizes(load("sin@authors")) == (100, 0)
    with pytest.raises(DataError, match="label"):
        load("sin@authors", label="price")


@pytest.mark.parametrize(("validation_size", "balanced"), [(10, False), (0, True)])
def test_what_they_did_not_do_is_refused(validation_size: int, balanced: bool) -> None:
    with pytest.raises(DataError, match="Use 0 and False, or the dataset without @authors"):
        split(load("sin@authors"), train_size=50, validation_size=validation_size, seed=0, balanced=balanced)


def test_what_is_not_known_of_them_is_refused() -> None:
    with pytest.raises(DataError, match="how the authors drew tinyimagenet is not known"):
        as_authors(numbered("tinyimagenet", 10))


def test_their_batches_of_sin_come_in_the_same_order_again_and_again() -> None:
    config = experiments()["table7"].cells[0].config
    rows = split(load("sin@authors"), train_size=100, validation_size=0, seed=config.seed).train
    assert rows.tolist() == list(range(100))
    taken = [batch.tolist() for batch in batches(100, replace(config, num_steps=3), torch.tensor([5, 6]))]
    first, second = list(range(50)), list(range(50, 100))
    assert taken == [[first, first], [second, second], [first, first]]


def test_weights_cannot_be_chosen_where_no_data_are_set_aside() -> None:
    assert can_be_tuned(experiments("authors_code")["table3"])
    assert not can_be_tuned(experiments("authors_seeds")["table3"])


def test_the_protocol_has_their_seeds_and_says_so() -> None:
    known = experiments("authors_seeds")
    runs = distinct_runs([known["table3"]])
    assert {config.seed for config in runs} == set(range(1, 11))
    assert {(config.data, config.validation_size) for config in runs} == {("mnist@authors", 0)}
    assert known["table4"].cells[0].config.data == "cifar10@authors"
    for experiment in known.values():
        pictures = any(cell.config.data in ("mnist@authors", "cifar10@authors") for cell in experiment.cells)
        assert pictures == (SEEDS in experiment.deviations)
        assert not any("official test set is for testing" in text for text in experiment.deviations)
