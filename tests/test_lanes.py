"""Runs in lanes: each as it would be alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_training import config, toy, without_times
from torch import Tensor, nn

import gradreg as gr
from gradreg.data import Dataset
from gradreg.engines import Auto, Compiled, DoubleBackward, Linearized, program
from gradreg.engines.program import TraceError
from gradreg.training import RunConfig, run
from gradreg.training import together as module
from gradreg.training.lanes import Lanes, compiled, wait_for
from gradreg.training.together import in_fleets, train_together

PENALTIES = (gr.SpectReg(weight=0.1), gr.WeightDecay(weight=0.01))


def images() -> Dataset:
    rng = np.random.Generator(np.random.PCG64(0))
    x, y = rng.integers(0, 256, (120, 8, 8, 3), dtype=np.uint8), rng.integers(0, 3, 120)
    return Dataset(name="i", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:], class_names=("a", "b", "c"))


def assert_equal_to_runs_alone(configs: list[RunConfig], data: Dataset) -> None:
    found = {trained.record.config.key: trained for trained in Lanes(configs, data, device="cpu", num_lanes=2).train()}
    assert set(found) == {one.key for one in configs}
    for one in configs:
        alone, lane = run(one, data), found[one.key]
        for expected, got in zip(alone.model.state_dict().values(), lane.model.state_dict().values(), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        assert lane.record.metrics == pytest.approx(alone.record.metrics, rel=1e-6)
        assert lane.record.curve.keys() == alone.record.curve.keys()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_more_runs_than_lanes(optimizer: str) -> None:
    """The second run of a lane starts from its own weights, with an optimizer without a past."""
    data = toy()
    base = config(data, penalties=PENALTIES, precision="fp64", num_steps=20, dropout=0.3, optimizer=optimizer)
    assert_equal_to_runs_alone([replace(base, seed=seed) for seed in range(5)], data)


def test_weights_and_learning_rates_of_their_own() -> None:
    data = toy()
    base = config(data, precision="fp64", num_steps=20)
    configs = [
        replace(base, seed=seed, learning_rate=0.01 * (seed + 1), penalties=(replace(PENALTIES[0], weight=weight),))
        for seed, weight in enumerate((0.0, 0.1, 1.0))
    ]
    assert_equal_to_runs_alone(configs, data)


def test_batch_norm_and_convolutions() -> None:
    data = images()
    own = RunConfig(
        data="i",
        fingerprint="",
        model="resnet",
        train_size=40,
        validation_size=10,
        num_steps=3,
        batch_size=20,
        penalties=PENALTIES,
        precision="fp64",
        optimizer="sgd",
        num_evaluations=1,
    )
    assert_equal_to_runs_alone([replace(own, seed=seed) for seed in range(2)], data)


def test_lanes_of_one_study_trace_a_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it trains for longer, or is evaluated elsewhere; what computes something else is traced by itself."""
    data, traced, codes, trace = toy(), [], {}, program.trace
    monkeypatch.setattr(program, "trace", lambda *given: traced.append(1) or trace(*given))
    base = config(data, penalties=PENALTIES, precision="fp64", num_steps=6, validation_size=10, dropout=0.3)

    def train(one: RunConfig) -> int:
        for trained in Lanes([replace(one, seed=seed) for seed in range(3)], data, device="cpu", codes=codes).train():
            alone = run(trained.record.config, data)
            assert trained.record.metrics == pytest.approx(alone.record.metrics, rel=1e-6)
        return len(traced)

    longer = replace(base, num_steps=9, num_evaluations=1, evaluate_on="validation", learning_rate=0.02)
    heavier = replace(longer, penalties=tuple(replace(penalty, weight=0.2) for penalty in PENALTIES))
    assert [train(one) for one in (base, longer, heavier)] == [1, 1, 1]
    assert train(replace(base, dropout=0.1)) == 2
    assert train(replace(base, penalties=PENALTIES[:1])) == 3


class Counting(nn.Module):
    """Remembers, beside its state, how often it was trained on."""

    def __init__(self, features: int, num_outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(features, num_outputs)
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps.add_(1)
        out: Tensor = self.last(x)
        return out


def counting(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return Counting(input_shape[0], num_outputs)


def test_a_buffer_beside_the_state_comes_with_the_model() -> None:
    data = toy()
    base = config(data, model=f"{__name__}:counting", num_steps=7)
    configs = [replace(base, seed=seed) for seed in range(2)]
    assert [float(trained.model.steps) for trained in Lanes(configs, data, device="cpu", num_lanes=1).train()] == [7, 7]


def global_state() -> tuple[object, ...]:
    return torch.get_rng_state().tolist(), torch.get_num_threads(), torch.get_float32_matmul_precision()


def test_between_runs_the_global_state_is_the_callers() -> None:
    data, threads, precision = toy(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high")
    try:
        before = global_state()
        configs = [config(data, num_steps=2, seed=seed) for seed in range(2)]
        seen = [global_state() for _ in Lanes(configs, data, device="cpu", num_lanes=1).train()]
        assert [*seen, global_state()] == [before] * 3
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def test_a_run_that_diverges_ends_at_the_next_point_and_the_next_is_unharmed() -> None:
    data = toy()
    base = config(data, precision="fp64", num_steps=30, num_evaluations=3, optimizer="sgd")
    wild, tame = replace(base, learning_rate=1e200), replace(base, seed=1)
    first, second = Lanes([wild, tame], data, device="cpu", num_lanes=1).train()
    assert first.record.metrics["diverged"] == 1
    assert len(first.record.curve.get("step", [])) < 3
    assert second.record.metrics == pytest.approx(run(tame, data).record.metrics, rel=1e-6)


def test_lanes_give_the_records_of_runs_alone_to_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy()
    configs = [config(data, seed=seed, num_steps=4, dropout=rate) for seed, rate in ((0, 0.1), (1, 0.5), (2, 0.1))]
    monkeypatch.setattr(module, "_pays", lambda *_: False)
    monkeypatch.setattr(module, "lanes_pay", lambda configs, kind: True)
    assert [len(part) for part in in_fleets(configs, data, "cpu")] == [3]
    records = {record.config.key: record for record in train_together(configs, data, "cpu")}
    for one in configs:
        expected = without_times(run(one, data).record)
        assert without_times(records[one.key])["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)


def test_what_cannot_be_traced_runs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(3, 2)\n"
        "    def forward(self, x):\n        y = self.layer(x)\n"
        "        return y if float(y.detach().sum()) > 1e9 else 2 * y\n"
        "def make():\n    return Net()\n"
    )
    data = toy()
    one = config(data, model=f"{tmp_path / 'own.py'}:make", num_steps=3)
    monkeypatch.setattr(module, "_pays", lambda *_: False)
    monkeypatch.setattr(module, "lanes_pay", lambda configs, kind: True)
    with pytest.warns(UserWarning, match="runs are trained one by one"):
        records = list(train_together([one, replace(one, seed=1)], data, "cpu"))
    assert [record.config.seed for record in records] == [0, 1]


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * torch.randn_like(x) if self.training else x


def noisy(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Dropout(0.5), Noisy(), nn.Linear(8, num_outputs))


def test_a_model_that_draws_by_itself_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its noise would depend on how the lanes take turns."""
    data = toy()
    configs = [config(data, model=f"{__name__}:noisy", num_steps=3, seed=seed) for seed in range(2)]
    with pytest.raises(TraceError, match="noisy' draws random numbers of its own.*train its runs alone"):
        list(Lanes(configs, data, device="cpu").train())
    monkeypatch.setattr(module, "_pays", lambda *_: False)
    monkeypatch.setattr(module, "lanes_pay", lambda configs, kind: True)
    with pytest.warns(UserWarning, match="runs are trained one by one .*draws random numbers of its own"):
        records = list(train_together(configs, data, "cpu"))
    assert [record.metrics for record in records] == [run(one, data).record.metrics for one in configs]


def test_the_engine_of_a_lane() -> None:
    assert compiled(DoubleBackward()) == Compiled(DoubleBackward())
    assert compiled(Auto()) == Compiled(DoubleBackward())
    assert compiled(Compiled(Linearized())) == Compiled(Linearized())
    assert compiled(Linearized()) == Compiled(Linearized())


def test_lanes_need_one_shape() -> None:
    data = toy()
    with pytest.raises(ValueError, match="lanes need runs of one shape and one rate of dropout"):
        Lanes([config(data, dropout=0.1), config(data, dropout=0.5)], data, device="cpu")


def test_what_lanes_gave_before_they_failed_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy()
    configs = [config(data, seed=seed, num_steps=2) for seed in range(3)]
    monkeypatch.setattr(module, "_pays", lambda *_: False)
    monkeypatch.setattr(module, "lanes_pay", lambda configs, kind: len(configs) > 1)

    def failing(configs, dataset, device, *, snapshots, codes):
        yield run(configs[0], dataset).record
        raise torch.OutOfMemoryError

    monkeypatch.setattr(module, "_in_lanes", failing)
    assert [record.config.seed for record in train_together(configs, data, "cpu")] == [0, 1, 2]


class Mark:
    """Reached when it was asked for so often."""

    def __init__(self, after: float) -> None:
        self.left = after

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_lane_that_stands_still_is_told() -> None:
    wait_for(Mark(after=3), seconds=60)
    with pytest.raises(RuntimeError, match="stood still for 0.01 s. Start again"):
        wait_for(Mark(after=float("inf")), seconds=0.01)
