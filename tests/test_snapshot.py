"""Runs that were stopped go on where they were, and end where they would have ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_training import config, toy, without_times

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


def stop_at(step: int) -> object:
    def stop(now: int, curve: object) -> None:
        if now >= step:
            raise Stopped

    return stop


def assert_the_same(found: Trained, expected: Trained) -> None:
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor), name
    provenance = {name: value for name, value in found.record.provenance.items() if name != "resumed_at"}
    assert without_times(replace(found.record, provenance=provenance)) == without_times(expected.record)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_alone(optimizer: str, tmp_path: Path) -> None:
    data = toy()
    one = some_run(data, optimizer=optimizer)
    with pytest.raises(Stopped):
        run(one, data, progress=stop_at(15), snapshots=tmp_path)
    seen: list[int] = []
    found = run(one, data, progress=lambda step, _: seen.append(step), snapshots=tmp_path)
    assert seen == [20, 25, 30, 35, 40]
    assert found.record.provenance["resumed_at"] == [15]
    assert_the_same(found, run(one, data))


def test_it_may_be_stopped_more_than_once(tmp_path: Path) -> None:
    data = toy()
    one = some_run(data)
    for stop in (10, 25):
        with pytest.raises(Stopped):
            run(one, data, progress=stop_at(stop), snapshots=tmp_path)
    found = run(one, data, snapshots=tmp_path)
    assert found.record.provenance["resumed_at"] == [10, 25]
    assert_the_same(found, run(one, data))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_runs_in_lanes(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that a lane trains goes on before the step is traced, a later one in tensors that the graph knows."""
    data = toy()
    configs = [some_run(data, seed=seed, optimizer=optimizer) for seed in range(3)]
    for one in configs[::2]:
        with monkeypatch.context() as patch:
            patch.setattr(Session, "_add_point", stopping(Session._add_point, 15))
            with pytest.raises(Stopped):
                list(Lanes([one], data, device="cpu", snapshots=tmp_path).train())
    found = list(Lanes(configs, data, device="cpu", num_lanes=1, snapshots=tmp_path).train())
    assert [trained.record.provenance.get("resumed_at") for trained in found] == [[10], None, [10]]
    for trained, expected in zip(found, Lanes(configs, data, device="cpu", num_lanes=1).train(), strict=True):
        assert_the_same(trained, expected)


def stopping(add_point: object, step: int) -> object:
    def add(session: Session) -> None:
        if session.step >= step:
            raise Stopped
        add_point(session)  # type: ignore[operator]

    return add


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


def test_the_study_removes_what_is_done(tmp_path: Path) -> None:
    data = toy()
    one = some_run(data)
    with pytest.raises(Stopped):
        run(one, data, progress=stop_at(20), snapshots=tmp_path)
    [record] = Executor(data, Store(tmp_path))([one])
    assert record.provenance["resumed_at"] == [20]
    assert [path.name for path in tmp_path.iterdir()] == [f"{one.key}.json"]


def test_nothing_is_kept_of_short_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_EVERY", 60.0)
    data = toy()
    run(some_run(data), data, snapshots=tmp_path)
    assert list(tmp_path.iterdir()) == []
