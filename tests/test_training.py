"""One run: a function of its config."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import gradreg as gr
from gradreg.data import DataError, Dataset, encode_images, encode_rows, load
from gradreg.draws import Draws
from gradreg.models import build, source_fingerprint
from gradreg.training import Fleet, RunConfig, RunRecord, run, schedule
from gradreg.training.augment import moved_and_mirrored
from gradreg.training.checkpoint import load_model, save
from gradreg.training.evaluator import Evaluator, Scales
from gradreg.training.metrics import evaluation_batch
from gradreg.training.resident import prepare
from gradreg.training.schedule import batches, evaluation_steps
from gradreg.training.session import make_optimizer, set_learning_rate


def toy(task: str = "classification") -> Dataset:
    """Two well separated clouds, or a linear function."""
    rng = np.random.Generator(np.random.PCG64(0))
    y = rng.integers(0, 2, 200)
    x = (rng.normal(size=(200, 3)) + 4 * y[:, None]).astype(np.float32)
    if task == "regression":
        target = (1000 + 50 * x.sum(1, keepdims=True)).astype(np.float32)
        return Dataset(
            name="toy", x_train=x[:150], y_train=target[:150], x_test=x[150:], y_test=target[150:], task="regression"
        )
    return Dataset(name="toy", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:], class_names=("a", "b"))


def config(dataset: Dataset, **changes: object) -> RunConfig:
    sizes = {"train_size": 60, "validation_size": 40, "num_steps": 60, "num_evaluations": 3, "learning_rate": 0.01}
    base = RunConfig(data=dataset.name, fingerprint=dataset.fingerprint, model="mlp", **sizes)
    return replace(base, **changes)


PENALTIES = (gr.SpectReg(weight=0.01), gr.WeightDecay(weight=0.001))


def without_times(record: RunRecord) -> dict:
    return {name: value for name, value in record.to_data().items() if name != "provenance"}


class WithLogits(nn.Module):
    """Returns what a model of Hugging Face would."""

    def __init__(self, features: int, num_outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(features, num_outputs)

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.last(x))


def with_logits(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return WithLogits(input_shape[0], num_outputs)


def test_a_model_knows_the_columns_that_it_was_trained_on(tmp_path: Path) -> None:
    """So that new rows can be given to it as they are written, also by a model that returns an object."""
    rows = [f"{i % 7},{('red', 'blue')[i % 2]},{('a', 'b')[i % 2]}" for i in range(60)]
    (tmp_path / "my.csv").write_text("\n".join(["size,colour,label", *rows]))
    data = load(str(tmp_path / "my.csv"))
    trained = run(config(data, model=f"{__name__}:with_logits", train_size=20, validation_size=5, num_steps=200), data)
    save(trained, data, tmp_path / "model")
    model = load_model(tmp_path / "model")
    found = model(encode_rows([{"colour": "red", "size": 3}, {"size": "4", "colour": "blue"}], model.columns))
    assert found.argmax(1).tolist() == [0, 1]


def test_a_point_at_which_a_penalty_did_not_act_has_no_number_of_it() -> None:
    """In a file it is null, and all lists stay as long as the steps."""
    data = toy()
    late = gr.SpectReg(weight=0.1, schedule=gr.Schedule(every=10))
    one = config(data, penalties=(late,), num_steps=40, num_evaluations=8)
    alone, (member,) = run(one, data).record, Fleet([one], data).train()
    for record in (alone, member.record):
        there = [not math.isnan(value) for value in record.curve["spect_reg"]]
        assert there == [True, False] * 4
        assert {len(values) for values in record.curve.values()} == {8}
        text = json.dumps(record.to_data(), allow_nan=False)
        again = RunRecord.from_data(json.loads(text)).curve["spect_reg"]
        np.testing.assert_array_equal(again, record.curve["spect_reg"])


def test_same_config_same_result_bit_for_bit_whatever_the_global_state() -> None:
    dataset = toy()
    one = config(dataset, penalties=PENALTIES, dropout=0.5)
    torch.manual_seed(1)
    first = run(one, dataset)
    torch.manual_seed(2)
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    second = run(one, dataset)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2
    assert without_times(first.record) == without_times(second.record)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_seed_and_penalty_make_a_difference() -> None:
    dataset = toy()
    base = config(dataset)
    losses = {
        run(c, dataset).record.metrics["train_loss"]
        for c in (base, replace(base, seed=1), replace(base, penalties=PENALTIES))
    }
    assert len(losses) == 3


def test_arms_of_one_seed_share_subset_and_initial_weights() -> None:
    dataset = toy()
    plain, other = config(dataset, num_steps=1), config(dataset, num_steps=1, penalties=PENALTIES)
    assert torch.equal(
        prepare(dataset, plain, torch.device("cpu")).train.x, prepare(dataset, other, torch.device("cpu")).train.x
    )
    assert run(plain, dataset).record.curve["train_loss"] == run(other, dataset).record.curve["train_loss"]


def test_it_learns_and_says_so() -> None:
    record = run(config(toy(), penalties=PENALTIES), toy()).record
    assert record.metrics["accuracy"] > 0.95
    assert record.metrics["diverged"] == 0
    assert record.curve["step"] == [20, 40, 60]
    assert {"train_loss", "loss", "accuracy", "spect_reg", "weight_decay"} <= set(record.curve)
    assert {len(values) for values in record.curve.values()} == {3}
    assert set(record.gradient_norms) == {"train", "test", "between"}
    assert {"gradreg", "torch", "device", "train_s", "evaluate_s", "git"} <= set(record.provenance)


def test_metrics_are_those_of_the_model() -> None:
    dataset = toy()
    trained = run(config(dataset), dataset)
    data = prepare(dataset, config(dataset), torch.device("cpu"))
    logits = trained.model.eval()(data.evaluated.inputs(slice(None)))
    y = torch.from_numpy(dataset.y_test)
    assert trained.record.metrics["accuracy"] == pytest.approx((logits.argmax(1) == y).float().mean().item())
    assert trained.record.metrics["loss"] == pytest.approx(nn.functional.cross_entropy(logits, y).item(), rel=1e-5)
    x = data.evaluated.inputs(slice(None)).requires_grad_()
    jacobian = torch.autograd.functional.jacobian(lambda v: trained.model(v).sum(0), x)
    expected = jacobian.square().sum((0, 2)).sqrt()
    np.testing.assert_allclose(trained.record.gradient_norms["test"], expected, atol=2e-5)
    squares = sum(float(p.detach().square().sum()) for p in trained.model.parameters() if p.ndim > 1)
    assert trained.record.metrics["squared_weight_norm"] == pytest.approx(squares, rel=1e-5)


def test_measuring_slopes_keeps_nothing_for_a_backward_pass() -> None:
    """What a graph by the parameters holds would grow from point to point: for the ResNet to tens of gigabytes."""
    dataset = toy()
    trained = run(config(dataset), dataset)
    data = prepare(dataset, config(dataset), torch.device("cpu"))
    evaluator = Evaluator(config(dataset), dataset.task, trained.model, torch.device("cpu"))
    norms = evaluator.gradient_norms(dict(trained.model.named_parameters()), Scales.of(data), data.evaluated.x)
    assert not norms.requires_grad


def test_regression_is_trained_scaled_and_reported_in_its_own_unit() -> None:
    dataset = toy("regression")
    trained = run(config(dataset, num_steps=500), dataset)
    spread = float(dataset.y_test.var())
    assert trained.record.metrics["mse"] < 0.05 * spread
    data = prepare(dataset, config(dataset), torch.device("cpu"))
    prediction = trained.model(data.evaluated.inputs(slice(None))) * data.target_std + data.target_mean
    assert trained.record.metrics["mse"] == pytest.approx(
        nn.functional.mse_loss(prediction, data.evaluated.y).item(), rel=1e-4
    )
    assert "accuracy" not in trained.record.metrics


@pytest.mark.parametrize(
    ("layer", "size"),
    [(nn.BatchNorm2d(3), 1000), (nn.BatchNorm2d(3, track_running_stats=False), 50), (nn.InstanceNorm2d(3), 1000)],
    ids=["running", "of the batch", "of each example"],
)
def test_only_statistics_of_the_batch_need_batches_as_in_training(layer: nn.Module, size: int) -> None:
    assert evaluation_batch(nn.Sequential(layer), 50) == size


def test_learned_function_of_one_number() -> None:
    dataset = load("sin")
    record = run(config(dataset, train_size=100, validation_size=1000), dataset).record
    assert record.function is not None
    assert record.function["x"] == sorted(record.function["x"])
    np.testing.assert_allclose(record.function["target"], np.sin(5 * np.array(record.function["x"])), atol=1e-4)
    assert len(record.function["train_x"]) == 100
    assert max(map(abs, record.function["train_x"])) <= 1  # SIN is not standardised, as in the paper


def test_standardised_with_the_training_subset_alone() -> None:
    dataset = toy()
    data = prepare(dataset, config(dataset), torch.device("cpu"))
    x = data.train.inputs(slice(None))
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert not torch.allclose(data.evaluated.inputs(slice(None)).mean(0), torch.zeros(3), atol=1e-3)


@pytest.mark.parametrize("shape", [(40, 5, 4), (40, 5, 4, 3)])
def test_images_stay_small_on_the_device_and_reach_the_model_standardised_channels_first(shape) -> None:
    images = np.random.Generator(np.random.PCG64(0)).integers(0, 200, shape, dtype=np.uint8)
    y = np.arange(40) % 2
    dataset = Dataset(name="toy", x_train=images, y_train=y, x_test=images, y_test=y, class_names=("a", "b"))
    data = prepare(dataset, config(dataset, train_size=20, validation_size=10), torch.device("cpu"))
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.shape[1:] == dataset.input_shape
    pixels = (images[..., None] if images.ndim == 3 else images).transpose(0, 3, 1, 2) / 255
    train = data.train.x.numpy() / 255
    mean, std = train.mean((0, 2, 3), keepdims=True), train.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(data.evaluated.inputs(slice(None)).numpy(), (pixels - mean) / std, atol=1e-5)


def test_validation_is_what_tuning_sees() -> None:
    dataset = toy()
    data = prepare(dataset, config(dataset, evaluate_on="validation"), torch.device("cpu"))
    assert len(data.evaluated) == 40
    train_rows = {tuple(row) for row in data.train.x.tolist()}
    assert not train_rows & {tuple(row) for row in data.evaluated.x.tolist()}
    assert not {tuple(row) for row in dataset.x_test.tolist()} & {tuple(row) for row in data.evaluated.x.tolist()}


def test_a_run_that_diverges_stops_and_says_so() -> None:
    dataset = toy()
    record = run(config(dataset, optimizer="sgd", learning_rate=1e30, penalties=PENALTIES), dataset).record
    assert record.metrics["diverged"] == 1
    assert all(math.isfinite(value) for value in record.metrics.values())
    json.dumps(record.to_data(), allow_nan=False)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_other_precisions(precision: str) -> None:
    dataset = toy()
    assert run(config(dataset, precision=precision, penalties=PENALTIES), dataset).record.metrics["accuracy"] > 0.9


def test_batches_show_every_example_once_an_epoch() -> None:
    one = config(toy(), batch_size=7, num_steps=30)
    rows = torch.cat(list(batches(20, one, torch.tensor([5]))), 1)[0]
    assert len(rows) == 7 * 30
    for epoch in range(10):
        assert sorted(rows[20 * epoch : 20 * epoch + 20].tolist()) == list(range(20))
    small = list(batches(3, one, torch.tensor([5])))
    assert all(sorted(batch[0].tolist()) == [0, 1, 2] for batch in small)


@pytest.mark.parametrize("at_once", [1, 200, 2**20])
def test_batches_do_not_depend_on_what_is_shuffled_in_one_go(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "ORDERED_AT_ONCE", at_once)
    rows = torch.cat(list(batches(20, config(toy(), batch_size=7, num_steps=30), torch.tensor([5, 6]))), 1)
    epochs = [[Draws(key).at("order", epoch).permutation(20) for epoch in range(11)] for key in (5, 6)]
    assert torch.equal(rows, torch.stack([torch.cat(own)[: 7 * 30] for own in epochs]))


def test_learning_rate_falls_at_half_and_three_quarters() -> None:
    one = config(toy(), num_steps=8, learning_rate=1.0)
    optimizer = make_optimizer(one, nn.Linear(1, 1))
    rates = []
    for step in range(8):
        set_learning_rate(optimizer, one, step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_optimizers_are_the_papers() -> None:
    adam, sgd = (make_optimizer(config(toy(), optimizer=name), nn.Linear(1, 1)) for name in ("adam", "sgd"))
    assert isinstance(adam, torch.optim.Adam)
    assert adam.defaults["betas"] == (0.9, 0.999)
    assert adam.defaults["weight_decay"] == sgd.defaults["weight_decay"] == 0
    assert sgd.defaults["nesterov"]
    assert sgd.defaults["momentum"] == 0.9


def test_evaluation_steps_end_at_the_last() -> None:
    assert evaluation_steps(config(toy(), num_steps=10, num_evaluations=4)) == {2, 5, 8, 10}
    assert evaluation_steps(config(toy(), num_steps=2, num_evaluations=20)) == {1, 2}


def test_config_survives_json_and_its_key_is_stable() -> None:
    penalties = (gr.SpectReg(weight=0.1, norm=gr.TargetSlope(2.0), schedule=gr.Schedule(every=3)), *PENALTIES)
    one = config(toy(), penalties=penalties)
    again = RunConfig.from_data(json.loads(json.dumps(one.to_data())))
    assert again == one
    assert again.key == one.key
    assert replace(one, arm="other").key == one.key
    assert config(toy(), penalties=(gr.SpectReg(weight=1),)).key == config(toy(), penalties=(gr.SpectReg(weight=1.0),)).key
    keys = {replace(one, **{field: value}).key for field, value in {"seed": 9, "dropout": 0.3, "penalties": ()}.items()}
    assert len(keys | {one.key}) == 4


def test_a_saved_model_is_loaded_with_its_standardisation(tmp_path: Path) -> None:
    dataset = toy()
    trained = run(config(dataset), dataset)
    save(trained, dataset, tmp_path)
    model = load_model(tmp_path)
    accuracy = (model(torch.from_numpy(dataset.x_test)).argmax(1).numpy() == dataset.y_test).mean()
    assert accuracy == pytest.approx(trained.record.metrics["accuracy"])
    regression = toy("regression")
    trained = run(config(regression, num_steps=300), regression)
    save(trained, regression, tmp_path / "regression")
    prediction = load_model(tmp_path / "regression")(torch.from_numpy(regression.x_test))
    error = float(((prediction.detach().numpy() - regression.y_test) ** 2).mean())
    assert error == pytest.approx(trained.record.metrics["mse"], rel=1e-3), "in the unit of the targets"
    from safetensors.torch import load_file

    plain = build("mlp", (3,), 2)
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with pytest.raises(ValueError, match="holds no model: gradreg train --out writes one"):
        load_model(tmp_path / "elsewhere")


@pytest.mark.parametrize("size", [(4, 4), (8, 8), (9, 12), (16, 16), (20, 28), (28, 28), (32, 32), (64, 64)])
def test_lenet_is_sized_to_the_image(size: tuple[int, int]) -> None:
    assert build("lenet", (3, *size), 7)(torch.randn(2, 3, *size)).shape == (2, 7)


def test_models_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch import nn\n"
        "def net(input_shape, num_outputs):\n    return nn.Linear(input_shape[0], num_outputs)\n"
        "def no():\n    return 3\n"
    )
    assert build(f"{path}:net", (5,), 2)(torch.randn(1, 5)).shape == (1, 2)
    assert isinstance(build("gradreg.models:mlp", (1,), 1), nn.Sequential)
    for name, message in {
        "tiny": "model 'tiny' is unknown: choose lenet",
        f"{path}:other": "has no function 'other'",
        "nowhere.py:net": "there is no file 'nowhere.py'",
        "nowhere.at.all:net": "cannot be imported",
        "lenet": r"lenet takes images, and an example here has shape \(5,\): use mlp",
    }.items():
        with pytest.raises(ValueError, match=message):
            build(name, (5,), 2)
    with pytest.raises(TypeError, match=r"returned int, expected a torch.nn.Module"):
        build(f"{path}:no", (5,), 2)
    with pytest.raises(ValueError, match="too small for lenet"):
        build("lenet", (1, 3, 3), 2)


def test_augmentation_moves_and_mirrors_and_repeats_itself() -> None:
    x = torch.arange(2 * 64.0).reshape(2, 1, 8, 8) + 1
    x = x.repeat(50, 1, 1, 1)
    draws = Draws.of_seed(3)
    found = moved_and_mirrored(x, draws)
    assert torch.equal(found, moved_and_mirrored(x, draws))
    assert not torch.equal(found, moved_and_mirrored(x, draws.at("next")))
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    kinds = set()
    for image, whole in zip(found, padded, strict=True):
        windows = {(t, left): whole[:, t : t + 8, left : left + 8] for t in range(9) for left in range(9)}
        places = [(place, "as is") for place, part in windows.items() if torch.equal(image, part)]
        places += [(place, "mirrored") for place, part in windows.items() if torch.equal(image, part.flip(2))]
        kinds.update(places[:1])
        assert places, "each is a window of the image with its margins, mirrored or not"
    assert len(kinds) > 30


def test_augmentation_is_part_of_training_and_not_of_evaluation() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    x, y = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), rng.integers(0, 2, 60)
    data = Dataset(name="i", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:], class_names=("a", "b"))
    plain = config(data, train_size=30, validation_size=5, num_steps=3, batch_size=10)
    first, second = (run(one, data) for one in (plain, replace(plain, augment=True)))
    assert first.record.metrics["train_loss"] != second.record.metrics["train_loss"]
    still = [replace(plain, learning_rate=0.0, augment=augment) for augment in (False, True)]
    assert run(still[0], data).record.metrics == run(still[1], data).record.metrics


def bytes_of_a_table() -> Dataset:
    luck = np.random.default_rng(0)
    x = luck.integers(0, 250, (60, 3)).astype(np.float32)
    y = (x[:, 0] > 125).astype(np.int64)
    return Dataset(name="bytes", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:], class_names=("low", "high"))


def test_bytes_are_pixels_in_pictures_alone(tmp_path: Path) -> None:
    data = bytes_of_a_table()
    save(run(config(data, train_size=20, validation_size=10, num_steps=5), data), data, tmp_path)
    model = load_model(tmp_path)
    torch.testing.assert_close(model(data.x_test.astype(np.uint8)), model(data.x_test))
    assert model.class_names == ("low", "high")
    assert model.input_shape == (3,)
    with pytest.raises(ValueError, match=r"takes \[n, 3\], and was given \(3,\): x\[None\] makes a batch"):
        model(data.x_test[0])
    with pytest.raises(ValueError, match=r"was given \(2, 4\): gradreg.data.encode_rows"):
        model(np.zeros((2, 4), dtype=np.float32))


def test_pictures_for_a_model_that_was_trained_on_some(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    luck = np.random.default_rng(0)
    for number in range(20):
        folder = tmp_path / "pictures" / ("dark", "light")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (luck.integers(0, 100, (8, 6, 3)) + 150 * (number % 2)).astype(np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    data = load(str(tmp_path / "pictures"))
    save(run(config(data, train_size=8, validation_size=2, num_steps=5), data), data, tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.input_shape == (3, 8, 6)
    paths = sorted((tmp_path / "pictures").rglob("*.png"))
    found = encode_images(paths, model.input_shape)
    assert found.shape == (20, 3, 8, 6)
    torch.testing.assert_close(model(found), model(found / np.float32(255)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(np.broadcast_to(found[:1], (2, 3, 8, 6)))  # which may not be written to
    with pytest.raises(ValueError, match=r"x.transpose\(0, 3, 1, 2\)"):
        model(found.transpose(0, 2, 3, 1))
    with pytest.raises(ValueError, match="there is one of 2[0-9]*: divide by 255"):
        model(found.astype(np.float32))
    with pytest.raises(ValueError, match=r"given as torch.int64: x.astype\('uint8'\)"):
        model(found.astype(np.int64))
    pixels = torch.from_numpy(found[:2] / np.float32(255))
    assert torch.func.jacrev(model)(pixels).shape == (2, 2, 2, 3, 8, 6)
    torch.testing.assert_close(torch.export.export(model, (pixels,)).module()(pixels), model(pixels))
    assert encode_images([], model.input_shape).shape == (0, 3, 8, 6)
    with pytest.raises(DataError, match="put it into a list"):
        encode_images(str(paths[0]), model.input_shape)
    assert encode_images([str(paths[0])], (1, 8, 6)).shape == (1, 1, 8, 6)
    with pytest.raises(DataError, match="names 2"):
        encode_images(paths, (2, 8, 6))


def test_rows_come_as_dicts_or_as_a_table() -> None:
    class Table:
        def to_dict(self, orient: str) -> list[dict[str, float]]:
            assert orient == "records"
            return [{"size": 1.0}, {"size": 2.0}]

    assert encode_rows(Table(), {"size": ()}).tolist() == [[1.0], [2.0]]
    with pytest.raises(DataError, match=r"put it into a list, \[row\]"):
        encode_rows({"size": 1.0}, {"size": ()})


def test_a_model_of_ones_own_is_loaded_as_it_was_trained(tmp_path: Path) -> None:
    path, data = tmp_path / "mine.py", toy()
    body = "from torch import nn\ndef net(num_outputs):\n    return nn.Sequential(nn.Linear(3, num_outputs), nn.{})\n"
    path.write_text(body.format("ReLU()"))
    name = f"{path}:net"
    one = config(data, model=name, model_source=source_fingerprint(name), num_steps=5)
    save(run(one, data), data, tmp_path / "model")
    expected = load_model(tmp_path / "model")(data.x_test)
    path.write_text(body.format("Tanh()"))
    assert torch.equal(load_model(tmp_path / "model")(data.x_test), expected)
    path.unlink()
    assert torch.equal(load_model(tmp_path / "model")(data.x_test), expected)
    (tmp_path / "model" / "gradreg_model.py").write_text(body.format("Tanh()"))
    with pytest.raises(ValueError, match=r"mine.py:net is not there, or was changed since .* was trained with it"):
        load_model(tmp_path / "model")
