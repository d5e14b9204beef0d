"""Penalties of the user's own in configs, records and comparisons."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from test_cli import QUICK, Shell, gradreg  # noqa: F401
from test_training import config, toy
from torch import Tensor

import gradreg as gr
from gradreg.penalties import FrobReg, Probe
from gradreg.penalties.as_data import to_data
from gradreg.penalties.own import is_own, origin_of, own_penalty
from gradreg.study import Arm, Executor, Plan, Store, compare, compare_arms
from gradreg.training import RunConfig, run

CODE = """
from dataclasses import dataclass
import gradreg as gr
from factor_of_mine import FACTOR

@dataclass(frozen=True, kw_only=True)
class Twice(gr.FrobReg):
    name = "twice"
    def __call__(self, probe):
        return FACTOR * super().__call__(probe)
"""


def write(folder: Path, code: str = CODE) -> str:
    (folder / "mine.py").write_text(code)
    (folder / "factor_of_mine.py").write_text("FACTOR = 2.0")
    return f"{folder / 'mine.py'}:Twice"


@dataclass(frozen=True, kw_only=True)
class Positive(gr.Penalty):
    """Outputs above zero."""

    power: int = 2

    def __call__(self, probe: Probe) -> Tensor:
        return probe.logits.relu().pow(self.power).flatten(1).sum(1)


def test_one_of_the_tests_is_recorded_and_known_again(tmp_path: Path) -> None:
    one = config(toy(), penalties=(Positive(weight=0.1, power=3),), num_steps=3)
    again = RunConfig.from_data(json.loads(json.dumps(one.to_data())))
    assert again == one
    store = Store(tmp_path)
    store.save(run(one, toy()).record)
    assert store.load(one).config == one


def test_one_in_a_file_is_the_same_until_its_code_changes(tmp_path: Path) -> None:
    name = write(tmp_path)
    kind = own_penalty(name)
    assert own_penalty(name) is kind
    assert is_own(kind)
    assert not is_own(FrobReg)
    before = to_data(kind(weight=1))
    (tmp_path / "factor_of_mine.py").write_text("FACTOR = 3.0")
    assert own_penalty(name) is not kind
    assert to_data(own_penalty(name)(weight=1)) != before


def test_what_was_recorded_is_read_without_its_code(tmp_path: Path) -> None:
    """With the same key, so that it belongs to the same study; but nothing can be computed with it."""
    one = config(toy(), penalties=(own_penalty(write(tmp_path))(weight=0.1, chunk_size=1),), num_steps=3)
    data = json.loads(json.dumps(one.to_data()))
    data["penalties"][0]["origin"][1] = "another"
    again = RunConfig.from_data(data)
    assert again.to_data() == data
    assert replace(again, seed=1).to_data() == data | {"seed": 1}
    assert type(again.penalties[0]).__name__ == "Twice"
    for compute in (lambda: run(again, toy()), lambda: RunConfig.from_data(data, to_run=True)):
        with pytest.raises(ValueError, match=r"penalty 'twice' is not as it was recorded: .*mine.py:Twice is not there"):
            compute()


def test_reading_a_record_runs_no_code(tmp_path: Path) -> None:
    """A script that trains when it is imported would train anew for a report."""
    (tmp_path / "mine.py").write_text("raise SystemExit")
    origin = [f"{tmp_path / 'mine.py'}:Margin", "0123456789abcdef"]
    data = config(toy()).to_data() | {"penalties": [{"name": "margin", "origin": origin, "weight": 0.1, "schedule": {}}]}
    assert RunConfig.from_data(data).penalties[0].weight == 0.1


def scaled(by: float) -> type[gr.Penalty]:
    @dataclass(frozen=True, kw_only=True)
    class Scaled(gr.Penalty):
        def __call__(self, probe: Probe) -> Tensor:
            return by * probe.logits.square().flatten(1).sum(1)

    return Scaled


def test_one_that_a_function_makes_is_what_it_does() -> None:
    assert origin_of(scaled(1.0)) == origin_of(scaled(1.0))
    assert origin_of(scaled(1.0)) != origin_of(scaled(2.0))


CELL = """
@dataclass(frozen=True, kw_only=True)
class Margin(gr.Penalty):
    def __call__(self, probe):
        return {} * probe.logits.square().flatten(1).sum(1)
"""


def test_a_cell_that_is_run_again_is_another_penalty_if_it_was_changed() -> None:
    found = []
    for factor in (1.0, 1000.0, 1.0):
        names = {"__name__": "__main__", "dataclass": dataclass, "gr": gr}
        exec(compile("\n" * len(found) + CELL.format(factor), "<cell>", "exec"), names)
        found.append(origin_of(names["Margin"]))
    assert found[0] == found[2] != found[1]


def test_two_arms_of_one_name_are_refused() -> None:
    arms = Arm(), Arm(kind=scaled(1.0), weights=(1,)), Arm(kind=scaled(2.0), weights=(1,))
    with pytest.raises(ValueError, match="two arms are called Scaled"):
        Plan(base=config(toy()), arms=arms)


class Outer:
    @dataclass(frozen=True, kw_only=True)
    class Inner(gr.Penalty):
        def __call__(self, probe: Probe) -> Tensor:
            return probe.logits.square().flatten(1).sum(1)


def test_one_inside_of_another_is_found() -> None:
    assert own_penalty(f"{__name__}:Outer.Inner") is Outer.Inner


def test_a_comparison_with_one_in_several_processes(tmp_path: Path) -> None:
    """Twice FrobReg does at half the weight what FrobReg does."""
    twice = own_penalty(write(tmp_path))
    arms = Arm(), Arm(kind=FrobReg, weights=(0.2,)), Arm(kind=twice, weights=(0.1,)), Arm(kind=Positive, weights=(0.1,))
    plan = Plan(base=config(toy(), num_steps=10), arms=arms, num_runs=3)
    records = compare(plan, Executor(toy(), Store(tmp_path / "records"), num_workers=2)).records
    losses = {arm.label: [one.metrics["train_loss"] for one in records if one.config.arm == arm.label] for arm in arms}
    assert losses["Twice"] == pytest.approx(losses["FrobReg"])
    assert losses["Positive"] != pytest.approx(losses["baseline"])
    assert [row.arm for row in compare_arms(records).rows] == ["baseline", "FrobReg", "Positive", "Twice"]


def test_on_the_command_line(gradreg: Shell, tmp_path: Path) -> None:  # noqa: F811
    write(tmp_path)
    words = ["--penalties", "SpectReg,mine.py:Twice", "--weights", "mine.py:Twice=0.01", "--weights", "spect_reg=0.02"]
    assert "Twice" in gradreg("compare", *QUICK, *words, "--out", "study").stdout
    gradreg("train", "--penalty", "mine.py:Twice=0.1", "--steps", "5", "--out", "model")
    assert json.loads((tmp_path / "model" / "record.json").read_text())["config"]["penalties"][1]["name"] == "twice"
    (tmp_path / "mine.py").unlink()
    assert "Twice" in gradreg("report", "study").stdout
    (tmp_path / "my own").mkdir()
    write(tmp_path / "my own")
    words = ["--penalties", "spect_reg, my own/mine.py:Twice", "--weights", "my own/mine.py:Twice=0.01"]
    shown = gradreg("compare", *QUICK, *words, "--weights", "SpectReg=1", "--out", "another").stdout
    assert "Twice" in shown


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("Twice = 3", "mine.py:Twice is no penalty: give a dataclass that extends gradreg.Penalty"),
        (CODE.replace('name = "twice"', "factor: float"), "cannot be made from a weight alone .*factor.*defaults"),
        ("import nowhere", "cannot be imported: ModuleNotFoundError"),
        ("", "has no function 'Twice'"),
    ],
)
def test_what_is_none(code: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        own_penalty(write(tmp_path, code))


def test_an_option_that_cannot_be_recorded_is_named() -> None:
    with pytest.raises(TypeError, match=r"Positive: power=torch.float32 cannot be written to a record"):
        config(toy(), penalties=(Positive(weight=1, power=torch.float32),)).to_data()
