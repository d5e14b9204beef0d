"""Runs that were stopped go on where they were, and end where they would have ended."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_training import config, toy, without_times
from torch import nn

import gradreg as gr
from gradreg.data import Dataset
from gradreg.study.execute import Executor
from gradreg.study.records import Store
from gradreg.training import RunConfig, Trained, run
from gradreg.training import snapshot as module
from gradreg.training.lanes import Lanes
from gradreg.training.session import Session
from gradreg.training.snapshot import snapshot_path


class Stopped(Exception):  # noqa: N818
    """As a machine that is switched off."""


@pytest.fixture(autouse=True)
def _at_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_EVERY", 0.0)


def some_run(data: Dataset, **changes: object) -> RunConfig:
    penalties = (gr.SpectReg(weight=0.1), gr.WeightDecay(weight=0.01))
    return replace(config(data, penalties=penalties, num_steps=40, dropout=0.3, num_evaluations=8), **changes)


def tied(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    size = input_shape[0]
    layers = nn.Linear(size, size), nn.Linear(size, size)
    layers[1].weight = layers[0].weight
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), nn.Linear(size, num_outputs))


def noisy(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.AlphaDropout(0.3), nn.Linear(8, num_outputs))


def remembering(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(Remembering(), nn.Linear(input_shape[0], num_outputs))


class Remembering(nn.Module):
    """Adds the mean of all that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(), 0.1)
        return x + self.mean.clone()


def stop_at(step: int) -> object:
    def stop(now: int, curve: object) -> None:
        if now >= step:
            raise Stopped

    return stop


def steps_resumed_at(trained: Trained) -> list[int]:
    return [one["step"] for one in trained.record.provenance.get("resumed_at", ())]


def assert_the_same(found: Trained, expected: Trained) -> None:
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor), name
    assert without_times(found.record) == without_times(expected.record)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_alone(optimizer: str, tmp_path: Path) -> None:
    data = toy()
    one = some_run(data, optimizer=optimizer)
    with pytest.raises(Stopped):
        run(one, data, progress=stop_at(15), snapshots=tmp_path)
    seen: list[int] = []
    found = run(one, data, progress=lambda step, _: seen.append(step), snapshots=tmp_path)
    assert seen == [20, 25, 30, 35, 40]
    assert steps_resumed_at(found) == [15]
    assert_the_same(found, run(one, data))


def test_it_may_be_stopped_more_than_once(tmp_path: Path) -> None:
    data = toy()
    one = some_run(data)
    for stop in (10, 25):
        with pytest.raises(Stopped):
            run(one, data, progress=stop_at(stop), snapshots=tmp_path)
    found = run(one, data, snapshots=tmp_path)
    assert steps_resumed_at(found) == [10, 25]
    assert_the_same(found, run(one, data))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_runs_in_lanes(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that a lane trains goes on before the step is traced, a later one in tensors that the graph knows."""
    data = toy()
    configs = [some_run(data, seed=seed, optimizer=optimizer) for seed in range(3)]
    for one in configs[::2]:
        stop_in_a_lane(one, data, tmp_path, monkeypatch, step=15)
    found = list(Lanes(configs, data, device="cpu", num_lanes=1, snapshots=tmp_path).train())
    assert [steps_resumed_at(trained) for trained in found] == [[10], [], [10]]
    for trained, expected in zip(found, Lanes(configs, data, device="cpu", num_lanes=1).train(), strict=True):
        assert_the_same(trained, expected)


def stop_in_a_lane(
    one: RunConfig, data: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch, *, step: int, device: str = "cpu"
) -> None:
    add_point = Session._add_point

    def stop(session: Session) -> None:
        if session.step >= step:
            raise Stopped
        add_point(session)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_add_point", stop)
        with pytest.raises(Stopped):
            list(Lanes([one], data, device=device, snapshots=folder).train())


@pytest.mark.parametrize("text", [b"", b"not a snapshot"], ids=["empty", "something else"])
def test_what_is_no_snapshot_is_said_and_not_used(text: bytes, tmp_path: Path) -> None:
    data = toy()
    one = some_run(data)
    snapshot_path(tmp_path, one).write_bytes(text)
    with pytest.warns(UserWarning, match="is no snapshot of this run .* starts anew"):
        found = run(one, data, snapshots=tmp_path)
    assert_the_same(found, run(one, data))


def test_a_snapshot_of_another_network_is_not_used(tmp_path: Path) -> None:
    data = toy()
    one = some_run(data)
    tensors = {f"model.{name}": tensor[..., :1].clone() for name, tensor in run(one, data).model.state_dict().items()}
    save_file(tensors, snapshot_path(tmp_path, one), {"run": "{}"})
    with pytest.warns(UserWarning, match=r"is \[.*\] there and \[.*\] here"):
        found = run(one, data, snapshots=tmp_path)
    assert_the_same(found, run(one, data))


@pytest.mark.parametrize("kind", ["tied", "noisy", "remembering"])
def test_models_of_ones_own(kind: str, tmp_path: Path) -> None:
    """With a weight in two places, with random numbers of PyTorch's, with a buffer that is not part of its state."""
    data = toy()
    one = some_run(data, model=f"{__name__}:{kind}")
    with pytest.raises(Stopped):
        run(one, data, progress=stop_at(15), snapshots=tmp_path)
    found = run(one, data, snapshots=tmp_path)
    assert steps_resumed_at(found) == [15]
    assert_the_same(found, run(one, data))


def test_a_snapshot_without_all_of_the_optimizer_is_not_used(tmp_path: Path) -> None:
    """Nor a part of it."""
    data = toy()
    one, other = (some_run(data, seed=seed) for seed in (0, 1))
    with pytest.raises(Stopped):
        run(other, data, progress=stop_at(15), snapshots=tmp_path)
    path = snapshot_path(tmp_path, other)
    tensors = {name: tensor for name, tensor in load_file(path).items() if "exp_avg_sq" not in name}
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    path.unlink()
    lanes = Lanes([one, other], data, device="cpu", num_lanes=1, snapshots=tmp_path).train()
    next(lanes)
    save_file(tensors, path, metadata)
    with pytest.warns(UserWarning, match="exp_avg_sq.* is missing.* starts anew"):
        found = next(lanes)
    [expected] = Lanes([other], data, device="cpu").train()
    assert_the_same(found, expected)


def save_on_a_full_disk(*args: object) -> None:
    """Files may have 1000 bytes; for this alone, since git, asked for the revision, writes files, too."""
    resource = pytest.importorskip("resource")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        save_file(*args)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy()
    monkeypatch.setattr("safetensors.torch.save_file", save_on_a_full_disk)
    with pytest.warns(UserWarning, match="cannot be written .*: the run goes on"):
        found = run(some_run(data), data, snapshots=tmp_path)
    assert_the_same(found, run(some_run(data), data))
    assert list(tmp_path.glob("*.safetensors")) == []


def test_nor_does_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    data = toy()
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="cannot be written .*: the run goes on"):
        found = run(some_run(data), data, snapshots=tmp_path / "file")
    assert_the_same(found, run(some_run(data), data))


def test_what_is_recorded_needs_no_snapshot(tmp_path: Path) -> None:
    """Also where the run was ended between the two."""
    data = toy()
    one, store = some_run(data), Store(tmp_path)
    store.save(run(one, data).record)
    snapshot_path(tmp_path, one).touch()
    Executor(data, store)([one])
    assert [path.name for path in tmp_path.iterdir()] == [f"{one.key}.json"]


def test_the_study_removes_what_is_done(tmp_path: Path) -> None:
    data = toy()
    one = some_run(data)
    with pytest.raises(Stopped):
        run(one, data, progress=stop_at(20), snapshots=tmp_path)
    [record] = Executor(data, Store(tmp_path))([one])
    assert [one["step"] for one in record.provenance["resumed_at"]] == [20]
    assert [path.name for path in tmp_path.iterdir()] == [f"{one.key}.json"]


def test_nothing_is_kept_of_short_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_EVERY", 60.0)
    data = toy()
    run(some_run(data), data, snapshots=tmp_path)
    assert list(tmp_path.iterdir()) == []
