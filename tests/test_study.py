"""The study: configs in, records out, and the choice in between."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from test_training import config, toy

import gradreg as gr
from gradreg.study.compare import StudyFolder, compare, tune
from gradreg.study.execute import Executor
from gradreg.study.plan import Plan, arms_of, default_weights, score, with_penalty
from gradreg.study.records import Store
from gradreg.training import RunConfig, RunRecord


def plan(**changes: object) -> Plan:
    base = config(toy(), num_steps=5, penalties=(gr.WeightDecay(weight=0.001),))
    arms = arms_of(["spect_reg", "double_back"], {"spect_reg": (0.01, 0.1, 1.0), "double_back": (1.0, 10.0)})
    return replace(Plan(base=base, arms=arms, num_runs=3, num_tuning_runs=2), **changes)


class Fake:
    """An executor that trains nothing and makes up scores from the weights."""

    def __init__(self, best: dict[str, float]) -> None:
        self.best, self.calls = best, []

    def __call__(self, configs: list[RunConfig]) -> list[RunRecord]:
        self.calls += configs
        return [RunRecord(config=c, metrics={"accuracy": self.accuracy(c)}) for c in configs]

    def accuracy(self, one: RunConfig) -> float:
        weights = {type(p).__name__: p.weight for p in one.penalties}
        wanted = self.best.get(one.arm)
        return 0.5 if wanted is None else 0.9 - abs(weights[one.arm] - wanted) / 1000 - 0.1 * (one.learning_rate != 0.01)


def test_weights_are_chosen_on_validation_and_tested_with_shared_seeds() -> None:
    fake = Fake({"SpectReg": 0.1, "DoubleBack": 10.0})
    arms = arms_of(["spect_reg", "double_back"], {"spect_reg": (0.01, 0.1, 1.0), "double_back": (0.1, 1.0, 10.0)})
    outcome = compare(plan(arms=arms), fake)
    assert outcome.chosen["SpectReg"].penalties == (gr.WeightDecay(weight=0.001), gr.SpectReg(weight=0.1))
    assert outcome.chosen["DoubleBack"].penalties[-1] == gr.DoubleBack(weight=10.0)
    assert outcome.chosen["baseline"].penalties == (gr.WeightDecay(weight=0.001),)
    assert outcome.at_edge == ("DoubleBack",)
    final = [r.config for r in outcome.records if r.config.evaluate_on == "test"]
    for label in ("baseline", "SpectReg", "DoubleBack"):
        assert [c.seed for c in final if c.arm == label] == [0, 1, 2]
    tuning = [r.config for r in outcome.records if r.config.evaluate_on == "validation"]
    assert len(tuning) == (1 + 3 + 3) * 2
    assert not {c.seed for c in tuning} & {c.seed for c in final}


def test_weights_that_validation_does_not_distinguish_are_no_preference() -> None:
    class Indifferent(Fake):
        def accuracy(self, one: RunConfig) -> float:
            weight = one.penalties[-1].weight
            return 0.9 + 1e-8 * weight - (one.arm == "DoubleBack" and weight > 1) / 10

    outcome = tune(plan(), Indifferent({}))
    assert (outcome.at_edge, outcome.undecided) == ((), ("SpectReg",))
    assert outcome.chosen["SpectReg"].penalties[-1].weight == 0.01
    assert tune(plan(), Fake({"SpectReg": 1.0, "DoubleBack": 1.0})).undecided == ()


def test_the_number_of_runs_is_known_beforehand() -> None:
    for one in (plan(), plan(learning_rates=(0.01, 0.1), weight_decays=(0.0, 0.1)), plan(arms=arms_of([], {}))):
        fake = Fake({"SpectReg": 0.1, "DoubleBack": 1.0})
        compare(one, fake)
        assert len({c.key for c in fake.calls}) == one.num_runs_in_all()


def test_test_data_have_no_say_in_the_choice() -> None:
    class Lying(Fake):
        def accuracy(self, one: RunConfig) -> float:
            return super().accuracy(one) if one.evaluate_on == "validation" else 1 - super().accuracy(one)

    honest, lying = Fake({"SpectReg": 0.1, "DoubleBack": 1.0}), Lying({"SpectReg": 0.1, "DoubleBack": 1.0})
    assert compare(plan(), honest).chosen == compare(plan(), lying).chosen
    assert all(c.evaluate_on == "validation" for c in _calls(tune, plan()))


def _calls(function, one: Plan) -> list[RunConfig]:
    fake = Fake({"SpectReg": 0.1, "DoubleBack": 1.0})
    function(one, fake)
    return fake.calls


def test_a_tuned_baseline_gives_its_settings_to_all_arms() -> None:
    class Rates(Fake):
        def accuracy(self, one: RunConfig) -> float:
            decay = next(p.weight for p in one.penalties if isinstance(p, gr.WeightDecay))
            return 0.5 + (one.learning_rate == 0.03) * 0.2 + (decay == 0.5) * 0.1

    outcome = tune(plan(learning_rates=(0.01, 0.03), weight_decays=(0.1, 0.5)), Rates({}))
    for chosen in outcome.chosen.values():
        assert chosen.learning_rate == 0.03
        assert gr.WeightDecay(weight=0.5) in chosen.penalties
        assert sum(isinstance(p, gr.WeightDecay) for p in chosen.penalties) == 1


def test_optuna_has_the_budget_of_the_grid_and_stays_in_its_range() -> None:
    pytest.importorskip("optuna")
    grid = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
    one = plan(arms=arms_of(["spect_reg", "double_back"], {"spect_reg": grid, "double_back": grid}), search="optuna")

    class Peak(Fake):
        def accuracy(self, one: RunConfig) -> float:
            return 0.9 - abs(math.log10(one.penalties[-1].weight) + 2) / 10  # best at 0.01

    fake = Peak({})
    outcome = tune(one, fake)
    for label in ("SpectReg", "DoubleBack"):
        tried = {c.penalties[-1].weight for c in fake.calls if c.arm == label}
        assert len(tried) == len(grid)
        assert min(grid) <= min(tried) <= max(tried) <= max(grid)
        assert outcome.chosen[label].penalties[-1].weight == min(tried, key=lambda w: abs(math.log10(w) + 2))
    assert tune(one, Peak({})).chosen == outcome.chosen


def test_an_arm_of_weight_decay_replaces_the_bases() -> None:
    one = plan()
    (_, arm) = arms_of(["weight_decay"], {})
    assert with_penalty(one.base, arm, 0.3).penalties == (gr.WeightDecay(weight=0.3),)


def test_all_arms_try_equally_many_weights() -> None:
    from gradreg.penalties import PENALTIES

    assert {len(default_weights(name)) for name in PENALTIES} == {9}
    assert default_weights("spect_reg")[0] == 1e-4
    with pytest.raises(ValueError, match="penalty 'specter' is unknown: choose from spect_reg"):
        arms_of(["specter"], {})


def test_scores() -> None:
    assert score({"accuracy": 0.5}) == 0.5
    assert score({"mse": 2.0}) == -2.0
    assert score({"mse": 2.0, "diverged": 1.0}) == score({}) == -float("inf")


# executing and recording


def test_what_is_recorded_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, store, told = toy(), Store(tmp_path), []
    configs = [config(dataset, num_steps=3, seed=seed) for seed in (0, 1, 1)]
    first = Executor(dataset, store, watch=told.append)(configs)
    assert [r.config.seed for r in first] == [0, 1, 1]
    assert len(list(tmp_path.iterdir())) == len(told) == 2
    monkeypatch.setattr("gradreg.study.execute.train_together", None)
    assert Executor(dataset, store)(configs) == first


def test_interrupted_in_the_middle_it_goes_on_from_there(tmp_path: Path) -> None:
    dataset, store = toy(), Store(tmp_path)
    configs = [config(dataset, num_steps=3, seed=seed) for seed in range(4)]

    def interrupt(record: RunRecord) -> None:
        if record.config.seed == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Executor(dataset, store, watch=interrupt)(configs)
    assert len(list(store.all())) == 2
    assert len(Executor(dataset, store)(configs)) == 4


def test_processes_give_the_records_of_one(tmp_path: Path) -> None:
    dataset = toy()
    configs = [config(dataset, num_steps=10, seed=seed, penalties=(gr.SpectReg(weight=0.1),)) for seed in range(3)]
    alone, together = (Executor(dataset, Store(tmp_path / str(n)), num_workers=n)(configs) for n in (1, 2))
    for a, b in zip(alone, together, strict=True):
        assert a.config == b.config
        assert a.metrics == pytest.approx(b.metrics, rel=1e-4)  # the size of a fleet decides the rounding


def test_folders_merge_by_copying(tmp_path: Path) -> None:
    dataset = toy()
    for part in (0, 1):
        Executor(dataset, Store(tmp_path / str(part)))([config(dataset, num_steps=2, seed=part)])
    for path in (tmp_path / "1").iterdir():
        path.rename(tmp_path / "0" / path.name)
    assert {record.config.seed for record in Store(tmp_path / "0").all()} == {0, 1}


def test_a_run_that_two_arms_share_is_trained_once_and_counts_for_both(tmp_path: Path) -> None:
    folder, told = StudyFolder(tmp_path), []
    one = plan(arms=arms_of(["weight_decay"], {"weight_decay": (0.001,)}))  # the weight that the base has
    outcome = compare(one, Executor(toy(), folder.store, watch=told.append))
    folder.save(outcome, "shared")
    assert len({record.config.key for record in told}) == 2 + 3
    for records in (outcome.records, folder.load()[1]):
        final = [r.config.arm for r in records if r.config.evaluate_on == "test"]
        assert final.count("baseline") == final.count("WeightDecay") == 3


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_text('{"schema": 1, "config"')
    with pytest.raises(ValueError, match=r"abc.json is no record of this version.*remove it"):
        list(Store(tmp_path).all())


def test_a_record_of_another_schema_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(RunRecord(config=config(toy()), metrics={"accuracy": 0.5}))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 0}))
    with pytest.raises(ValueError, match=r"no record of this version \(its schema is 0.*reads 1\): remove it"):
        store.load(config(toy()))


def test_a_record_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bad = RunRecord(config=config(toy()), metrics={"accuracy": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        store.save(bad)
    assert not list(tmp_path.glob("*.json"))


def test_a_study_remembers_which_records_are_its_own(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    with pytest.raises(ValueError, match="no records in .*run gradreg compare first"):
        folder.load()
    execute = Executor(toy(), folder.store)
    outcome = compare(plan(arms=arms_of([], {})), execute)
    folder.save(outcome, "toy: mlp")
    execute([config(toy(), num_steps=2, seed=77)])
    title, records = folder.load()
    assert title == "toy: mlp"
    assert {r.config.key for r in records} == {r.config.key for r in outcome.records}
    assert json.loads((tmp_path / "study.json").read_text())["title"] == "toy: mlp"
    folder.store.path(records[0].config).unlink()
    with pytest.raises(ValueError, match=f"1 of the {len(records)} runs that .* have no record.*run the same"):
        folder.load()


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: Path, text: str) -> None:
        path.write_bytes(text[:10].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match=r"\.json cannot be written \(No space left on device\). Finished runs are kept"):
        Store(tmp_path).save(RunRecord(config=config(toy()), metrics={"accuracy": 0.5}))
    assert not list(tmp_path.iterdir())


def test_a_damaged_list_of_records_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("")
    with pytest.raises(ValueError, match=r"study.json is damaged \(.*\): remove it"):
        StudyFolder(tmp_path).load()
