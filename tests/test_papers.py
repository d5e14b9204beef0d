"""The paper as data: published numbers, protocols, results, verdicts, and running what is missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from transcribed import ACCURACIES, OTHER_WEIGHTS, SIN_MSE, TEXT, WEIGHT_DECAY, WEIGHTS_BY_TRAIN_SIZE

import gradreg as gr
from gradreg.data import load
from gradreg.models import build
from gradreg.papers.experiment import Cell, Claim, Experiment, Metric, Published, arm_id, distinct_runs
from gradreg.papers.judge import claims_tested, judge
from gradreg.papers.reproduce import Reproduction
from gradreg.papers.results import Results, compact, run_id
from gradreg.papers.tuned import can_be_tuned, tuned, tuning_of
from gradreg.papers.varga2018 import PROTOCOLS, experiments, protocol
from gradreg.papers.varga2018.tables import SIN_PRINTED
from gradreg.report.reproduction import as_data, as_text, headline
from gradreg.report.reproduction_figures import CAPTIONS, draw
from gradreg.report.reproduction_page import write_page
from gradreg.study.plan import default_weights, score
from gradreg.training import RunConfig, RunRecord

ROOT = Path(__file__).parent.parent
KNOWN = experiments()


def weight(config: RunConfig, kind: type[gr.Penalty]) -> float:
    (found,) = [penalty.weight for penalty in config.penalties if isinstance(penalty, kind)]
    return found


# ---- the numbers ----


def test_every_published_accuracy_is_the_papers() -> None:
    tables = [e for name, e in KNOWN.items() if name.startswith("table") and name != "table7"]
    declared = {(e.id, *c.place): (c.published.mean, c.published.std) for e in tables for c in e.cells if c.published}
    assert declared == ACCURACIES


def test_sin_and_the_full_data_accuracy_are_the_papers() -> None:
    printed = {float(cell.column): cell.published.mean / SIN_PRINTED for cell in KNOWN["table7"].cells}
    assert printed == pytest.approx(SIN_MSE)
    full = [cell.published.mean for cell in KNOWN["full_data"].cells]
    assert full == [TEXT["MNIST full-data accuracy"], TEXT["CIFAR-10 full-data accuracy"]]


def test_there_are_52_published_cells_in_the_tables() -> None:
    assert sum(c.published is not None for name, e in KNOWN.items() if name.startswith("table") for c in e.cells) == 52


@pytest.mark.parametrize("name", ["authors_code", "paper"])
def test_weights_by_size_are_the_appendixs(name: str) -> None:
    figure = experiments(name)["train_size"]
    kinds = {"DoubleBack": gr.DoubleBack, "SpectReg": gr.SpectReg, "JacReg": gr.JacReg, "CP": gr.ConfidencePenalty}
    for size, weights in WEIGHTS_BY_TRAIN_SIZE.items():
        found = [weight(figure.cell(str(size), arm).config, kind) for arm, kind in kinds.items()]
        assert tuple(found) == weights
        assert figure.cell(str(size), "CP").config.train_size == size


MNIST, CIFAR10, CIFAR100 = "small MNIST", "small CIFAR-10", "small CIFAR-100"
PLACES = {
    "4.1 MNIST SpectReg, no weight decay": ("table1", MNIST, "SpectReg, no weight decay"),
    "4.1 MNIST SpectReg, weight decay": ("table1", MNIST, "SpectReg, weight decay"),
    "4.1 CIFAR-10 SpectReg, no weight decay": ("table1", CIFAR10, "SpectReg, no weight decay"),
    "4.1 CIFAR-10 SpectReg, weight decay": ("table1", CIFAR10, "SpectReg, weight decay"),
    "4.1 CIFAR-100 SpectReg, no weight decay": ("table1", CIFAR100, "SpectReg, no weight decay"),
    "4.1 CIFAR-100 SpectReg, weight decay": ("table1", CIFAR100, "SpectReg, weight decay"),
    **{
        f"4.2 {row} {arm}": ("table2", row, arm)
        for row in ("Batchnorm", "Dropout", "Baseline")
        for arm in ("DoubleBack", "SpectReg")
    },
    "4.3 MNIST DoubleBack": ("table3", "No CP", "DoubleBack"),
    "4.3 MNIST SpectReg": ("table3", "No CP", "SpectReg"),
    "4.3 MNIST CP": ("table3", "CP", "Baseline"),
    "4.3 MNIST DoubleBack, with CP": ("table3", "CP", "DoubleBack"),
    "4.3 CIFAR-10 CP": ("table4", CIFAR10, "CP"),
    "4.3 CIFAR-10 SpectReg": ("table4", CIFAR10, "SpectReg"),
    "4.3 CIFAR-10 DoubleBack": ("table4", CIFAR10, "DoubleBack"),
    "4.3 CIFAR-100 CP": ("table4", CIFAR100, "CP"),
    "4.3 CIFAR-100 DoubleBack": ("table4", CIFAR100, "DoubleBack"),
    **{f"4.6 {arm}": ("table6", MNIST, arm) for arm in ("SpectReg", "JacReg", "FrobReg")},
}


@pytest.mark.parametrize("name", PLACES)
def test_weights_are_the_appendixs(name: str) -> None:
    table, row, column = PLACES[name]
    kinds = {kind.__name__: kind for kind in gr.penalties.PENALTIES.values()} | {"CP": gr.ConfidencePenalty}
    kind = next(kind for word, kind in kinds.items() if word in name.split(",")[0])
    assert weight(experiments("paper")[table].cell(row, column).config, kind) == OTHER_WEIGHTS[name]


@pytest.mark.parametrize(("row", "expected"), WEIGHT_DECAY.items())
def test_weight_decay_is_that_of_table_1(row: str, expected: float) -> None:
    table = KNOWN["table1"]
    for arm in ("Baseline", "SpectReg"):
        assert weight(table.cell(row, f"{arm}, weight decay").config, gr.WeightDecay) == expected
        penalties = table.cell(row, f"{arm}, no weight decay").config.penalties
        assert not any(isinstance(penalty, gr.WeightDecay) for penalty in penalties)


# ---- the protocols ----


def test_what_the_authors_code_did_where_the_text_differs() -> None:
    code, text = experiments("authors_code")["table3"], experiments("paper")["table3"]
    config, written = code.cell("CP", "SpectReg").config, text.cell("CP", "SpectReg").config
    assert (config.learning_rate, written.learning_rate) == (0.001, 0.1)
    assert (config.balanced, written.balanced) == (False, True)
    spect, confidence = config.penalties[1:]
    assert (spect.forward, spect.per_example, confidence.reduction) == ("fresh", False, "sum")
    assert (written.penalties[1].forward, written.penalties[2].reduction) == ("shared", "mean")
    assert (config.optimizer, config.num_steps, config.batch_size, config.drops) == ("adam", 10_000, 50, (0.5, 0.75))


def test_cifar_under_each_protocol() -> None:
    place = ("table4", CIFAR10, "SpectReg")
    found = {name: experiments(name)[place[0]].cell(*place[1:]).config for name in PROTOCOLS}
    assert {name: config.num_steps for name, config in found.items()} == {
        "authors_code": 50_000,
        "authors_seeds": 50_000,
        "paper": 50_000,
        "short": 2500,
    }
    assert found["short"].learning_rate == 0.2
    assert found["short"].learning_rate * 2500 == found["authors_code"].learning_rate * 50_000  # weight decay does as much
    assert (found["short"].num_evaluations, found["authors_code"].num_evaluations) == (1, 20)  # as many steps apart
    assert weight(found["authors_code"], gr.SpectReg) == weight(found["short"], gr.SpectReg) == 0.003
    assert weight(found["paper"], gr.SpectReg) == 0.03
    assert found["authors_code"].optimizer == "sgd"
    assert experiments()["table4"].cell(CIFAR100, "CP").config.train_size == 20_000


def test_tinyimagenet_trains_75_epochs_with_two_drops() -> None:
    config = KNOWN["table5"].cells[0].config
    assert config.num_steps == 75 * 90_000 // 64
    assert config.drops == (1 / 3, 2 / 3)


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(ValueError, match="protocol 'x' is unknown: choose authors_code, authors_seeds, paper, short"):
        protocol("x")


def test_batch_norm_stands_in_the_place_of_dropout() -> None:
    config = KNOWN["table2"].cell("Batchnorm", "NoGR").config
    names = [type(layer).__name__ for layer in build(config.model, (1, 28, 28), 10)]
    assert "BatchNorm1d" in names
    assert "Dropout" not in names


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_config_survives_its_record(name: str) -> None:
    for config in distinct_runs(experiments(name).values()):
        assert RunConfig.from_data(json.loads(json.dumps(config.to_data()))) == config


def test_shared_arms_are_trained_once() -> None:
    baseline = [KNOWN["table1"].cell(MNIST, "Baseline, weight decay"), KNOWN["table2"].cell("Dropout", "NoGR")]
    baseline += [KNOWN["table3"].cell("No CP", "Baseline"), KNOWN["train_size"].cell("2000", "Baseline")]
    assert len({arm_id(cell.config) for cell in baseline}) == 1
    runs = [run_id(config) for config in distinct_runs(KNOWN.values())]
    assert len(set(runs)) == len(runs)


def test_a_claim_about_a_missing_cell_is_an_error() -> None:
    with pytest.raises(ValueError, match="speaks of cells that are not there"):
        replace(KNOWN["table3"], claims=(Claim(text="x", better=("CP", "nobody"), worse=("CP", "Baseline")),))


# ---- verdicts ----

SEEDS = 10


PRINTED = Published(97.0, 0.2)


def toy(published: Published | None = PRINTED, **changes: object) -> Experiment:
    base = KNOWN["table3"].cells[0].config
    cells = [
        Cell(row="r", column=name, config=replace(base, learning_rate=rate), published=published)
        for name, rate in (("a", 0.1), ("b", 0.2))
    ]
    claim = Claim(text="b is better", better=("r", "b"), worse=("r", "a"))
    made = Experiment(id="toy", title="t", where="w", cells=tuple(cells), claims=(claim,), num_runs=SEEDS)
    return replace(made, **changes)


def records(experiment: Experiment, *means: float, spread: float = 0.002) -> list[RunRecord]:
    rng = np.random.Generator(np.random.PCG64(0))
    return [
        RunRecord(config=config, metrics={"accuracy": float(mean + spread * rng.normal()), "diverged": 0.0})
        for cell, mean in zip(experiment.cells, means, strict=True)
        for config in cell.configs(SEEDS)
    ]


def test_difference_and_interval_are_welchs() -> None:
    experiment = toy()
    runs = records(experiment, 0.971, 0.975)
    first = judge(experiment, runs)[0]
    ours = [100 * run.metrics["accuracy"] for run in runs[:SEEDS]]
    reference = stats.ttest_ind_from_stats(np.mean(ours), np.std(ours, ddof=1), SEEDS, 97.0, 0.2, 10, equal_var=False)
    assert first.difference == pytest.approx(np.mean(ours) - 97.0)
    assert first.difference / first.standard_error == pytest.approx(reference.statistic)
    variances = [np.var(ours, ddof=1) / SEEDS, 0.2**2 / 10]
    freedom = sum(variances) ** 2 / sum(v**2 / 9 for v in variances)
    assert first.margin == pytest.approx(first.standard_error * stats.t.ppf(0.975, freedom))


def test_verdicts() -> None:
    experiment = toy()
    assert [one.verdict for one in judge(experiment, records(experiment, 0.9705, 0.98))] == ["agrees", "differs"]
    assert [one.verdict for one in judge(experiment, [])] == ["not run"] * 2
    unpublished = toy(published=None)
    assert {one.verdict for one in judge(unpublished, records(unpublished, 0.97, 0.97))} == {"not published"}


def test_a_single_published_run_is_compared_with_single_runs() -> None:
    experiment = toy(published=Published(97.0, None, num_runs=1))
    first = judge(experiment, records(experiment, 0.973, 0.973))[0]
    assert first.standard_error == pytest.approx(first.ours.std * math.sqrt(1 + 1 / SEEDS))
    assert first.verdict == "agrees"


def test_one_run_is_run_and_not_judged() -> None:
    experiment = toy()
    runs = [record for record in records(experiment, 0.97, 0.97) if record.config.seed == 0]
    assert [one.verdict for one in judge(experiment, runs)] == ["one run"] * 2
    assert headline([experiment], {"toy": runs}).startswith(
        "2 of 2 published cells run (2 of one run, which has no spread to judge by), 0 agree"
    )


def test_diverged_runs_are_counted_and_left_out() -> None:
    experiment = toy()
    runs = records(experiment, 0.97, 0.97)
    runs[0] = replace(runs[0], metrics={"accuracy": 0.1, "diverged": 1.0})
    first = judge(experiment, runs)[0]
    assert (first.diverged, first.ours.n) == (1, SEEDS - 1)
    assert first.ours.mean > 96


@pytest.mark.parametrize(
    ("better", "equal", "expected"),
    [
        (0.98, False, "holds"),
        (0.96, False, "reversed"),
        (0.97, False, "not significant"),
        (0.97, True, "holds"),
        (0.98, True, "differs after all"),
    ],
)
def test_claims(better: float, equal: bool, expected: str) -> None:
    experiment = toy(claims=(replace(toy().claims[0], equal=equal),))
    runs = records(experiment, 0.97, better)
    (tested,) = claims_tested(experiment, judge(experiment, runs))
    assert tested.outcome == expected
    values = [[run.metrics["accuracy"] for run in runs[start : start + SEEDS]] for start in (0, SEEDS)]
    assert tested.p_value == pytest.approx(stats.ttest_ind(values[1], values[0], equal_var=False).pvalue)


def test_bonferroni_and_errors_where_less_is_better() -> None:
    metric = Metric(name="accuracy", factor=1, higher_is_better=False)
    plain = toy()
    experiment = replace(plain, cells=tuple(replace(cell, metric=metric) for cell in plain.cells))
    runs = records(experiment, 0.972, 0.97)
    (once,) = claims_tested(experiment, judge(experiment, runs))
    thrice = replace(experiment, claims=(replace(experiment.claims[0], comparisons=3),))
    (corrected,) = claims_tested(thrice, judge(thrice, runs))
    assert once.difference > 0
    assert corrected.p_value == pytest.approx(min(1, 3 * once.p_value))


# ---- results ----


def test_results_come_back_and_merge(tmp_path: Path) -> None:
    experiment, results = toy(), Results(tmp_path)
    runs = records(experiment, 0.97, 0.98)
    results.add(experiment, runs[:15])
    results.add(experiment, runs[10:])
    results.add(experiment, records(KNOWN["table7"], *[0.1] * 10)[:3])  # of another experiment
    found = {run_id(record.config): record for record in results.load(experiment)}
    assert len(found) == 20
    for run in runs:
        assert found[run_id(run.config)].metrics["accuracy"] == pytest.approx(run.metrics["accuracy"], rel=1e-6)
    assert judge(experiment, found.values())[0].ours.mean == pytest.approx(judge(experiment, runs)[0].ours.mean, rel=1e-6)


def test_compact_records_keep_what_figures_need() -> None:
    run = replace(
        records(toy(), 0.97, 0.98)[0],
        curve={"step": [1.0]},
        gradient_norms={"train": [1.0, 3.0], "between": []},
        function={"x": [1.0]},
        provenance={"device": "d"},
    )
    small = compact(run)
    assert small.metrics["gradient_norm_train"] == 2.0
    assert (small.curve, small.gradient_norms, small.function) == ({}, {}, {"x": [1.0]})
    assert compact(replace(run, config=replace(run.config, seed=9))).function is None


# ---- running ----


def tiny() -> Experiment:
    cells = [replace(c, config=replace(c.config, num_steps=5, num_evaluations=1)) for c in KNOWN["sin_domain"].cells[:2]]
    return replace(KNOWN["sin_domain"], cells=tuple(cells), claims=(), num_runs=2)


def reproduction(folder: Path, seen: list[RunRecord], *chosen: Experiment) -> Reproduction:
    return Reproduction(
        experiments=chosen, results=Results(folder / "results"), store=folder / "records", load=load, watch=seen.append
    )


def test_runs_what_is_missing_and_only_that(tmp_path: Path) -> None:
    seen: list[RunRecord] = []
    one = reproduction(tmp_path, seen, tiny())
    assert len(one.missing()) == 4
    one.run()
    assert len(seen) == 4
    assert one.missing() == []
    more = reproduction(tmp_path, seen, replace(tiny(), num_runs=3))
    assert [config.seed for config in more.missing()] == [2, 2]
    more.run()
    assert len(seen) == 6
    assert judge(tiny(), more.results.load(tiny()))[0].ours.n == 3


def test_all_data_are_there_before_the_first_run(tmp_path: Path) -> None:
    seen: list[RunRecord] = []
    plateaus = replace(KNOWN["plateaus"], num_runs=1)

    def refuse(name: str):
        if name == "sin_pairs":
            raise ValueError("not prepared")
        return load(name)

    both = replace(reproduction(tmp_path, seen, tiny(), plateaus), load=refuse)
    with pytest.raises(ValueError, match="not prepared"):
        both.run()
    assert seen == []


def test_an_arm_of_two_experiments_is_run_once_and_kept_in_both(tmp_path: Path) -> None:
    seen: list[RunRecord] = []
    twin = replace(tiny(), id="twin")
    both = reproduction(tmp_path, seen, tiny(), twin)
    both.run()
    assert len(seen) == 4
    assert len(both.results.load(twin)) == len(both.results.load(tiny())) == 4


def test_what_is_kept_twice_stays_as_it_is(tmp_path: Path) -> None:
    """Two calls may have run the same arm for two experiments: neither file takes the other's numbers."""
    one, twin = tiny(), replace(tiny(), id="twin")
    both = reproduction(tmp_path, [], one, twin)
    both.run()
    changed = [replace(record, metrics=record.metrics | {"mse": 7.0}) for record in both.results.load(twin)]
    both.results.add(twin, changed)
    before = [both.results.path(each).read_text() for each in (one, twin)]
    both.run()
    reproduction(tmp_path, [], twin, one).run()
    assert [both.results.path(each).read_text() for each in (one, twin)] == before


def test_folders_of_results_merge(tmp_path: Path) -> None:
    """What is in both stays as it is here."""
    here, there = (reproduction(tmp_path / name, [], tiny()) for name in ("here", "there"))
    here.run()
    more = replace(there, experiments=[replace(tiny(), num_runs=4)])
    more.run()
    before = here.results.load(tiny())
    here.merge(there.results)
    merged = here.results.load(tiny())
    assert sorted(run_id(record.config) for record in merged) == sorted(run_id(r.config) for r in more.results.load(tiny()))
    assert [record for record in merged if record.config.seed < 2] == before
    text = there.results.path(tiny()).read_text()
    there.results.path(tiny()).write_text(text.replace(before[0].config.fingerprint, "0" * 16))
    with pytest.raises(ValueError, match="its fingerprint is 0000000000000000"):
        here.merge(there.results)


def test_runs_on_other_data_of_the_same_name_are_not_mixed(tmp_path: Path) -> None:
    reproduction(tmp_path, [], tiny()).run()
    more = reproduction(tmp_path, [], replace(tiny(), num_runs=3))
    sin = load("sin")
    other = replace(sin, x_train=sin.x_train + 1)
    assert other.fingerprint != sin.fingerprint
    with pytest.raises(ValueError, match=f"its fingerprint is {other.fingerprint}, theirs {sin.fingerprint}.*--out"):
        replace(more, load=lambda name: other).run()
    more.run()


@pytest.mark.parametrize("text", ["{", "{}", "[1]"])
def test_a_damaged_file_of_results_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "sin_domain.json").write_text(text)
    with pytest.raises(ValueError, match=r"sin_domain.json is no file of results"):
        Results(tmp_path).load(tiny())


def test_what_one_experiment_knows_another_need_not_run(tmp_path: Path) -> None:
    seen: list[RunRecord] = []
    reproduction(tmp_path, seen, tiny()).run()
    twin = replace(tiny(), id="twin")
    both = reproduction(tmp_path, seen, tiny(), twin)
    both.run()
    assert len(seen) == 4
    assert len(both.results.load(twin)) == 4


# ---- showing ----


def committed() -> dict[str, list[RunRecord]]:
    results = Results(ROOT / "results" / "varga2018" / "authors_code")
    return {name: results.load(experiment) for name, experiment in KNOWN.items()}


def test_text_puts_disagreements_first() -> None:
    experiment = toy()
    text = as_text(experiment, records(experiment, 0.9705, 0.98))
    assert text.index("differs") < text.index("agrees")
    assert "holds" in text
    told = as_data(experiment, records(experiment, 0.9705, 0.98))
    assert [cell["verdict"] for cell in told["cells"]] == ["agrees", "differs"]
    json.dumps(told, allow_nan=False)


def test_headline_counts() -> None:
    experiment = toy()
    runs = {"toy": records(experiment, 0.9705, 0.98)}
    assert headline([experiment], runs).startswith("2 of 2 published cells run, 1 agree within two standard errors")


def test_committed_results_are_of_declared_arms_and_know_their_origin() -> None:
    found = committed()
    for name, experiment in KNOWN.items():
        arms = {arm_id(cell.config) for cell in experiment.cells}
        for record in found[name]:
            assert arm_id(record.config) in arms
            assert ("cpu" if name == "table7" else "H200") in record.provenance["device"]
    assert sum(map(len, found.values())) > 1000


def test_figures_and_page_of_the_committed_results(tmp_path: Path) -> None:
    found = committed()
    assert set(draw(KNOWN, found)) == set(CAPTIONS)
    assert draw(KNOWN, {name: [] for name in KNOWN}) == {}
    text = write_page(KNOWN, found, tmp_path / "a" / "index.html", title="t <b>").read_text()
    assert "t &lt;b&gt;" in text
    assert text.count("<svg") == len(CAPTIONS)
    assert "http" not in text.replace("http://www.w3.org", "").replace("https://matplotlib.org", "").replace(
        "http-equiv", ""
    )


def test_the_papers_order_of_arms_holds_on_mnist() -> None:
    """The results that are committed: DoubleBack with the confidence penalty best, gradient penalties above the rest."""
    table = KNOWN["table3"]
    judged = {one.cell.place: one.ours.mean for one in judge(table, committed()["table3"])}
    assert max(judged, key=judged.get) == ("CP", "DoubleBack")
    tested = {
        t.claim.text: t
        for name in ("table2", "table3")
        for t in claims_tested(KNOWN[name], judge(KNOWN[name], committed()[name]))
    }
    for name in ("SpectReg", "DoubleBack"):
        for other in ("baseline", "dropout", "batchnorm"):
            claim = tested[f"{name} alone outperforms {other} alone"]
            assert claim.outcome == "holds"
            assert claim.p_value < 0.01


# ---- weights of our own ----


def test_tuning_tries_the_grid_on_validation_data_alone() -> None:
    trial = tuning_of(KNOWN["table3"])
    assert {cell.config.evaluate_on for cell in trial.cells} == {"validation"}
    assert min(config.seed for cell in trial.cells for config in cell.configs(3)) == 1000
    double = [cell for cell in trial.cells if cell.row == "No CP / DoubleBack"]
    assert [weight(cell.config, gr.DoubleBack) for cell in double] == [*default_weights("double_back")]
    beside = [cell for cell in trial.cells if cell.row == "CP / DoubleBack"]
    assert {weight(cell.config, gr.ConfidencePenalty) for cell in beside} == {0.01}
    assert not [cell for cell in trial.cells if cell.row == "No CP / Baseline"]


def test_arms_that_differ_in_the_tuned_weight_alone_are_tuned_once() -> None:
    rows = {cell.row for cell in tuning_of(KNOWN["train_size"]).cells}
    assert len(rows) == 9 * 4
    assert len({cell.row for cell in tuning_of(KNOWN["sin_domain"]).cells}) == 1


def test_the_best_weight_on_validation_is_taken() -> None:
    table = KNOWN["table6"]
    runs = []
    for cell in tuning_of(table).cells:
        for config in cell.configs(3):
            value = 0.99 if cell.column == "0.01" else 0.9
            runs.append(RunRecord(config=config, metrics={"accuracy": value}))
    found = tuned(table, runs)
    assert [cell.config.penalties[-1].weight for cell in found.cells] == [0.01] * 5
    assert {(cell.config.evaluate_on, cell.config.seed) for cell in found.cells} == {("test", 0)}
    assert [cell.published for cell in found.cells] == [cell.published for cell in table.cells]
    assert tuned(table, []).cells == ()


def test_experiments_about_weights_cannot_be_tuned() -> None:
    fit = {name for name, experiment in KNOWN.items() if can_be_tuned(experiment)}
    assert fit == {"table1", "table2", "table3", "table4", "table5", "table6", "train_size", "mnist_gradients"}


def test_a_diverged_run_does_not_win_the_tuning() -> None:
    assert score({"accuracy": 0.99, "diverged": 1.0}) == -math.inf


def test_tune_and_run(tmp_path: Path) -> None:
    trial, seen = tuning_of(tiny()), []
    reproduction(tmp_path, seen, trial).run()
    assert len(seen) == 9 * 3
    assert all(record.config.evaluate_on == "validation" for record in seen)
    final = tuned(tiny(), Results(tmp_path / "results").load(trial))
    assert final.cells[0].config == tiny().cells[0].config  # the baseline has nothing to tune
    reproduction(tmp_path, seen, final).run()
    assert [one.ours.n for one in judge(final, Results(tmp_path / "results").load(final))] == [2, 2]


def test_the_short_protocol_says_that_it_is_short() -> None:
    short, whole = experiments("short"), experiments()
    for name, experiment in short.items():
        told = any("a twentieth of the paper's steps" in text for text in experiment.deviations)
        assert told == (name in ("table1", "table4", "full_data"))
        assert not any("a twentieth" in text for text in whole[name].deviations)


def test_two_standard_errors_of_few_runs_are_said_to_be_few() -> None:
    experiment = toy(published=Published(97.0, 0.2, num_runs=2))
    runs = [one for one in records(experiment, 0.975, 0.975) if one.config.seed < 2]
    first = judge(experiment, runs)[0]
    assert first.verdict == "differs"
    assert abs(first.difference) < first.margin
    assert "the interval is wider: 2 of those that differ have zero in it" in as_text(experiment, runs)
    assert "zero in it" not in as_text(experiment, [*runs[:1], *records(experiment, 0.97, 0.97)])


def test_teeth_are_told_from_steps_by_runs_that_are_there_already() -> None:
    """Large weights on SIN: no run is made for them."""
    teeth, by_weight = KNOWN["sawtooth"], {cell.column: arm_id(cell.config) for cell in KNOWN["sin_domain"].cells}
    assert {cell.row: arm_id(cell.config) for cell in teeth.cells} == {
        f"SpectReg {weight}": by_weight[weight] for weight in ("0.03", "0.3", "1", "3", "10")
    }
    for flat, steep, outcome in ((0.0, 4.0, "reversed"), (2.0, 2.0, "holds")):  # a step function, and a tooth
        slopes = {"train": flat, "between": steep, "test": steep}
        runs = [
            RunRecord(config=config, metrics={f"gradient_norm_{name}": v + 0.01 * config.seed for name, v in slopes.items()})
            for cell in teeth.cells
            for config in cell.configs(3)
        ]
        assert {one.outcome for one in claims_tested(teeth, judge(teeth, runs))} == {outcome}
