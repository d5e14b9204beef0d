"""A member of a fleet against the same run alone."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_training import config, toy

import gradreg as gr
from gradreg.data import Dataset, load
from gradreg.training import Fleet, RunConfig, run, shape_of
from gradreg.training.fleet_step import FleetStep
from gradreg.training.optimizers import Optimizer
from gradreg.training.together import in_fleets, train_together

MEMBERS = 3


def members(base: RunConfig) -> list[RunConfig]:
    """Three that differ in all that they may: seed, size of the subset, learning rate, weights, dropout."""

    def penalties(factor: float) -> tuple[gr.Penalty, ...]:
        return tuple(replace(penalty, weight=factor * penalty.weight) for penalty in base.penalties)

    return [
        replace(
            base,
            seed=seed,
            train_size=base.train_size + (10 if base.train_size > base.batch_size else 0) * (seed % 2),
            learning_rate=base.learning_rate * (1 + seed),
            penalties=penalties(1 + seed / 2),
            dropout=None if base.dropout is None else base.dropout * (1 - seed / 10),
        )
        for seed in range(MEMBERS)
    ]


def assert_members_equal_single_runs(base: RunConfig, data: Dataset, tolerance: float = 1e-9) -> None:
    configs = members(base)
    for member, one in zip(Fleet(configs, data).train(), configs, strict=True):
        alone = run(one, data)
        assert member.record.config == one
        tensors = dict(member.model.state_dict())
        for name, expected in alone.model.state_dict().items():
            torch.testing.assert_close(
                tensors[name], expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )
        for part in ("metrics", "gradient_norms", "curve"):
            mine, theirs = getattr(member.record, part), getattr(alone.record, part)
            assert mine.keys() == theirs.keys()
            for name in theirs:
                assert mine[name] == pytest.approx(theirs[name], rel=1e-6, abs=2e-5), (part, name)
        assert (member.record.function is None) == (alone.record.function is None)


PENALTIES = [
    (),
    (gr.SpectReg(weight=0.1),),
    (gr.SpectReg(weight=0.1, forward="fresh", num_projections=2, projection="sphere"), gr.WeightDecay(weight=0.01)),
    (gr.DoubleBack(weight=1.0), gr.ConfidencePenalty(weight=0.01)),
    (gr.JacReg(weight=1.0),),
    (gr.FrobReg(weight=0.01, schedule=gr.Schedule(warmup_steps=10, every=2)),),
    (gr.RandomOneHot(weight=0.1, fraction=0.5), gr.LabelSmoothing(weight=0.1)),
    (gr.TopK(weight=0.1, k=2, wrt="1"), gr.SoftmaxProjection(weight=0.1, norm="l2")),
]


@pytest.mark.parametrize("penalties", PENALTIES, ids=repr)
def test_member_equals_the_run_alone(penalties: tuple[gr.Penalty, ...]) -> None:
    data = toy()
    base = config(
        data,
        penalties=penalties,
        precision="fp64",
        num_steps=50,
        dropout=0.5,
        batch_size=7,
        num_evaluations=3,
        learning_rate=0.01,
    )
    assert_members_equal_single_runs(base, data)


@pytest.mark.parametrize("engine", ["linearized", "finite_difference", "forward"])
def test_with_every_engine(engine: str) -> None:
    data = toy()
    num_steps = 5 if engine == "finite_difference" else 20
    base = config(
        data, penalties=(gr.SpectReg(weight=0.1),), precision="fp64", num_steps=num_steps, batch_size=7, engine=engine
    )
    # A difference over a step of 1e-8 makes 1e-8 of what is rounding elsewhere.
    assert_members_equal_single_runs(base, data, 1e-5 if engine == "finite_difference" else 1e-9)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_convolutions(optimizer: str) -> None:
    data = load("digits")
    base = config(
        data,
        data="digits",
        fingerprint=data.fingerprint,
        model="lenet",
        penalties=(gr.SpectReg(weight=0.03), gr.WeightDecay(weight=0.0005)),
        precision="fp64",
        optimizer=optimizer,
        num_steps=50,
        train_size=40,
        dropout=0.4,
        num_evaluations=1,
        learning_rate=0.003,
    )
    assert_members_equal_single_runs(base, data)


OWN = """
from torch import nn

def make(num_outputs: int, input_shape: tuple[int, ...], generator=None) -> nn.Module:
    layers = [nn.Conv2d(input_shape[0], 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(108, num_outputs))
    for parameter in model.parameters():
        parameter.data.uniform_(-0.3, 0.3, generator=generator)
    return model
"""


@pytest.mark.parametrize(
    "penalties", [(), (gr.DoubleBack(weight=0.1),), (gr.SpectReg(weight=0.1, batch_norm="frozen"),)], ids=repr
)
def test_ones_own_model_with_running_statistics(tmp_path, penalties) -> None:
    (tmp_path / "own.py").write_text(OWN)
    data = load("digits")
    base = config(
        data,
        data="digits",
        fingerprint=data.fingerprint,
        model=f"{tmp_path / 'own.py'}:make",
        penalties=penalties,
        precision="fp64",
        num_steps=20,
        train_size=40,
        num_evaluations=2,
        learning_rate=0.003,
    )
    assert_members_equal_single_runs(base, data)


def test_regression_with_its_learned_function() -> None:
    data = load("sin")
    base = RunConfig(
        data="sin",
        fingerprint=data.fingerprint,
        model="mlp",
        train_size=20,
        validation_size=10,
        num_steps=30,
        precision="fp64",
        penalties=(gr.SpectReg(weight=0.1),),
    )
    assert_members_equal_single_runs(base, data)
    (member,) = Fleet([base], data).train()
    alone = run(base, data).record.function
    assert member.record.function is not None
    assert alone is not None
    for name, column in alone.items():
        assert member.record.function[name] == pytest.approx(column, abs=2e-5)


def test_a_member_that_diverges_is_frozen_and_the_others_go_on() -> None:
    data = toy()
    base = config(data, num_steps=40, precision="fp64", penalties=(gr.FrobReg(weight=0.1),), num_evaluations=4)
    wild = replace(base, seed=1, learning_rate=1e200)
    calm, diverged, other = Fleet([base, wild, replace(base, seed=2)], data).train()
    assert [m.record.metrics["diverged"] for m in (calm, diverged, other)] == [0, 1, 0]
    assert diverged.record.metrics == pytest.approx(run(wild, data).record.metrics)
    assert len(diverged.record.curve.get("step", [])) < 4
    assert calm.record.metrics == pytest.approx(run(base, data).record.metrics, rel=1e-6)


def test_members_must_have_one_shape() -> None:
    data = toy()
    with pytest.raises(ValueError, match="these 2 configs have 2.*differ in.*seed, train_size"):
        Fleet([config(data), config(data, num_steps=7)], data)


def test_shape_ignores_what_may_differ() -> None:
    data = toy()
    base = config(data, penalties=(gr.SpectReg(weight=0.1),), dropout=0.5)
    assert len({shape_of(member) for member in members(base)}) == 1
    assert shape_of(base) != shape_of(replace(base, dropout=0.0))
    assert shape_of(base) != shape_of(replace(base, penalties=(gr.SpectReg(weight=0.1, num_projections=2),)))


def test_leaves_the_global_state_alone() -> None:
    data = toy()
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    Fleet([config(data, num_steps=3)], data).train()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_runs_are_split_into_fleets_where_that_pays() -> None:
    data = load("digits")
    base = config(data, data="digits", fingerprint=data.fingerprint, penalties=(gr.SpectReg(weight=0.1),))
    perceptrons = [replace(base, seed=seed) for seed in range(27)]
    assert [len(fleet) for fleet in in_fleets(perceptrons, data, "cpu", 2)] == [14, 13]
    assert [len(fleet) for fleet in in_fleets(perceptrons[:10], data, "cpu", 2)] == [10]
    assert [len(fleet) for fleet in in_fleets(perceptrons, data, "cpu", 1)] == [27]
    convolutions = [replace(one, model="lenet") for one in perceptrons[:3]]
    assert [len(fleet) for fleet in in_fleets(convolutions, data, "cpu", 2)] == [1, 1, 1]
    assert [len(fleet) for fleet in in_fleets(convolutions, data, "cuda", 1)] == [3]
    mixed = perceptrons[:4] + [replace(one, penalties=(gr.JacReg(weight=1.0),)) for one in perceptrons[:2]]
    assert [len(fleet) for fleet in in_fleets(mixed, data, "cpu", 1)] == [2, 4]  # the longest first


BRANCHING = """
import torch
from torch import nn

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(3, 2)

    def forward(self, x):
        return self.dense(x) if x.sum() > 0 else self.dense(-x)

def make():
    return Branching()
"""


def test_a_model_that_cannot_be_vectorised_is_trained_one_run_after_the_other(tmp_path) -> None:
    (tmp_path / "own.py").write_text(BRANCHING)
    data = toy()
    configs = [config(data, model=f"{tmp_path / 'own.py'}:make", num_steps=3, seed=seed) for seed in range(2)]
    with pytest.warns(UserWarning, match="runs are trained one by one"):
        records = list(train_together(configs, data, "cpu"))
    assert [record.config.seed for record in records] == [0, 1]
    assert all("fleet" not in record.provenance for record in records)


def test_a_mistake_in_a_fleets_step_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> None:
        raise KeyError("a weight that is missing")

    monkeypatch.setattr(FleetStep, "_advance", mistaken)
    data = toy()
    with pytest.warns(UserWarning, match="runs are trained one by one .*a weight that is missing"):
        records = list(train_together([config(data, num_steps=2, seed=seed) for seed in range(2)], data, "cpu"))
    assert [record.config.seed for record in records] == [0, 1]


def test_a_fleet_too_large_for_memory_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy()
    sizes: list[int] = []
    train = Fleet.train

    def limited(self: Fleet) -> list:
        sizes.append(len(self.configs))
        if len(self.configs) > 2:
            raise torch.OutOfMemoryError
        return train(self)

    monkeypatch.setattr(Fleet, "train", limited)
    records = list(train_together([config(data, num_steps=2, seed=seed) for seed in range(4)], data, "cpu"))
    assert sizes == [4, 2, 2]
    assert [record.config.seed for record in records] == [0, 1, 2, 3]


def test_the_memory_of_a_fleet_that_failed_is_there_for_its_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as long as its error is handled, whose traceback holds the fleet."""
    data = toy()
    fleets: list[weakref.ref[Fleet]] = []
    alive_when_emptied: list[bool] = []

    def failing(self: Fleet) -> list:
        self.itself = self
        fleets.append(weakref.ref(self))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Fleet, "train", failing)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive_when_emptied.append(fleets[-1]() is not None))
    list(train_together([config(data, num_steps=2, seed=seed) for seed in range(2)], data, "cpu"))
    assert alive_when_emptied == [False]


def test_adam_in_single_precision_loses_no_digits_at_the_start() -> None:
    gradients = torch.tensor([[1.0, 0.3, -0.02], [0.5, -0.1, 2.0], [0.7, 0.2, 0.1]])
    exact = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adam([exact], lr=1.0)
    member, adam = torch.zeros(1, 3), Optimizer("adam")
    state = adam.start(member)
    for count, gradient in enumerate(gradients, 1):
        exact.grad = gradient.double()
        reference.step()
        adam.step({"w": member}, {"w": gradient[None]}, {"w": state}, torch.ones(1), torch.tensor(count))
        torch.testing.assert_close(member[0].double(), exact.detach(), rtol=1e-6, atol=1e-6)


FROZEN = """
from torch import nn

def make(generator=None):
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    for parameter in model.parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=generator)
    model[0].requires_grad_(False)
    model.register_buffer("scratch", model[0].weight.detach().clone(), persistent=False)
    return model
"""


def test_frozen_parameters_stay_as_they_are(tmp_path) -> None:
    (tmp_path / "own.py").write_text(FROZEN)
    data = toy()
    penalties = (gr.SpectReg(weight=0.1), gr.WeightDecay(weight=0.1))
    base = config(data, model=f"{tmp_path / 'own.py'}:make", penalties=penalties, precision="fp64", num_steps=10)
    assert_members_equal_single_runs(base, data)


@pytest.mark.parametrize("engine", ["compiled", "auto"])
def test_engines_that_stand_for_another(engine: str) -> None:
    data = toy()
    base = config(data, penalties=(gr.SpectReg(weight=0.1),), precision="fp64", num_steps=5, engine=engine)
    assert_members_equal_single_runs(base, data)


def test_augmented_members() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    x, y = rng.integers(0, 256, (90, 8, 8), dtype=np.uint8), rng.integers(0, 2, 90)
    data = Dataset(name="i", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:], class_names=("a", "b"))
    base = config(data, train_size=40, validation_size=5, num_steps=4, batch_size=50, precision="fp64", augment=True)
    assert_members_equal_single_runs(base, data)
