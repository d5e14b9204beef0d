"""What small MNIST gives from the authors' own seeds, beside ours: the parts of docs/reproduction.md that tell of it."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gradreg.papers.experiment import Experiment
from gradreg.papers.judge import Judged, claims_tested, judge
from gradreg.papers.results import Results
from gradreg.papers.varga2018 import experiments
from gradreg.report.reproduction import Records, cells, claim_cells, table
from gradreg.report.reproduction_figures import CAPTIONS
from gradreg.study.statistics import Difference, Summary, welch
from gradreg.study.verdict import p_text
from gradreg.training import RunRecord

KEPT = Path(__file__).parent / "varga2018"
OURS, THEIRS = "authors_code", "authors_seeds"
#: Experiment, row and column.
Place = tuple[str, str, str]


def recorded(protocol: str = OURS) -> dict[str, Records]:
    """All runs that are kept of a protocol, by experiment."""
    results = Results(KEPT / protocol)
    return {name: results.load(experiment) for name, experiment in experiments(protocol).items()}


def with_their_seeds() -> dict[Place, Judged]:
    """The cells of small MNIST from the authors' seeds, by table, row and column."""
    return _places(THEIRS, recorded(THEIRS))


def on_the_cpu(tested_on: str) -> dict[Place, Judged]:
    """The same on one of the two sets of test images, for the arms that were run on the CPU, too."""
    known = experiments(THEIRS)
    with (KEPT / "authors_seeds.csv").open() as file:
        records = [
            RunRecord(
                config=replace(known[line["table"]].cell(line["row"], line["column"]).config, seed=int(line["seed"])),
                metrics={"accuracy": float(line[tested_on])},
            )
            for line in csv.DictReader(file)
        ]
    return _places(THEIRS, dict.fromkeys(known, records))


def _places(protocol: str, records: Mapping[str, Records]) -> dict[Place, Judged]:
    """The cells of a protocol that were run."""
    judged = ((name, one) for name, e in experiments(protocol).items() for one in judge(e, records[name]))
    return {(name, *one.cell.place): one for name, one in judged if one.ours is not None}


def count_with_their_seeds() -> str:
    """How many cells agree if those of small MNIST are taken from the authors' seeds."""
    theirs = with_their_seeds()
    published = [one for one in theirs.values() if one.cell.published is not None]
    verdicts = [one.verdict for one in (_places(OURS, recorded()) | theirs).values() if one.cell.published is not None]
    return (
        "From the training images and initial weights of the authors' own seeds "
        f"{[one.verdict for one in published].count('agrees')} of the {len(published)} cells of small MNIST agree,\nand so "
        f"{verdicts.count('agrees')} of all {len(verdicts)}."
    )


def disagreements() -> str:
    """The cells that differ with our seeds or with the authors'."""
    theirs, rows = with_their_seeds(), []
    for place, one in _places(OURS, recorded()).items():
        other = theirs.get(place)
        if "differs" in (one.verdict, other and other.verdict):
            line, beside = cells(one), ["", "differs"] if other is None else [cells(other)[3], f"{other.verdict} then"]
            rows.append([place[0], *line[:6], *beside])
    rows.sort(key=lambda row: ("differs", "differs then", "agrees then").index(row[-1]))
    headers = ("experiment", "", "", "published", "ours", "n", "difference [95 %]", "from the authors' seeds", "verdict")
    return "\n".join(table(headers, rows))


def tables_and_claims() -> str:
    ours, theirs = _places(OURS, recorded()), with_their_seeds()
    again_on_the_cpu = [on_the_cpu(name) for name in ("last_10000_of_training", "official")]
    rows = []
    for place, one in theirs.items():
        line = cells(one)
        again = [cells(found[place])[3] if place in found else "" for found in again_on_the_cpu]
        rows.append([place[0], *line[:3], cells(ours[place])[3], *line[3:], *again])
    text = (
        "The authors' code draws images and initial weights by numpy's generator with the seeds 1 to 10, which gives the "
        "same today. These runs are trained on those and tested on the images that the authors tested on; dropout, "
        "projections and batches are ours. One H200, TensorFloat-32 (`gradreg reproduce table1 table2 table3 table6 "
        "--protocol authors_seeds --data mnist`). The last two columns have arms of it again, on the CPU in single "
        "precision (`results/authors_seeds.py`): on the authors' test images, and on the official ones."
    )
    headers = (
        "",
        "",
        "",
        "published",
        "our seeds",
        "their seeds",
        "n",
        "difference [95 %]",
        "verdict",
        "CPU",
        "CPU, official",
    )
    picture = f"![With their seeds](images/reproduction_authors_seeds.png)\n\n*{CAPTIONS['differences']}*"
    return "\n\n".join([text, "\n".join(table(headers, rows)), picture, _claims_by_seeds()])


def _claims_by_seeds() -> str:
    """The claims on small MNIST that come out otherwise with the authors' seeds."""
    rows = []
    for name, experiment in experiments(THEIRS).items():
        theirs = _outcomes(experiment, recorded(THEIRS)[name])
        ours = _outcomes(experiments(OURS)[name], recorded()[name])
        rows += [[name, text, *ours[text], *theirs[text]] for text in theirs if ours[text][2] != theirs[text][2]]
    text = (
        f"{len(rows)} of the claims on these tables come out otherwise with their seeds than with ours; all others come out "
        "alike, significant or not, with both:"
    )
    headers = ("", "claim", "our seeds", "p", "outcome", "their seeds", "p", "outcome")
    return text + "\n\n" + "\n".join(table(headers, rows))


def _outcomes(experiment: Experiment, records: Records) -> dict[str, list[str]]:
    """Difference, p and outcome of the claims that could be tested."""
    lines = (claim_cells(one) for one in claims_tested(experiment, judge(experiment, records)))
    return {line[0]: line[1:] for line in lines if line[-1] != "not run"}


def images_or_weights() -> str:
    drawn = {
        ("ours", "ours"): _baselines("two_test_sets"),
        ("theirs", "ours"): _baselines("images_or_weights", images="theirs"),
        ("ours", "theirs"): _baselines("images_or_weights", images="ours"),
        ("theirs", "theirs"): _baselines("authors_seeds", row="No CP", column="Baseline"),
    }
    rows = []
    for whose, runs in drawn.items():
        summary = Summary.of([accuracy for _, accuracy in runs])
        rows.append([*whose, f"{summary.mean:.2f} ({summary.std:.2f})", f"{summary.n}"])
    by_images = {whose: _by_images(drawn[whose, "ours"] + drawn[whose, "theirs"]) for whose in ("ours", "theirs")}
    images = welch(by_images["theirs"], by_images["ours"])
    weights = welch(*([accuracy for _, accuracy in drawn["ours", whose]] for whose in ("theirs", "ours")))
    text = (
        "Is it their images or their initial weights? Baselines with one of the two, each of their ten seeds three times "
        "(`results/images_or_weights.py`), beside those of the table above with both, and the further ones with neither "
        f"(`results/two_test_sets.py`), on the authors' test images. Their images gain {_interval(images)} (over the means "
        f"of their 10 draws and {len(by_images['ours'])} of ours), their initial weights {_interval(weights)} (on images of "
        "ours), by Welch's test."
    )
    return text + "\n\n" + "\n".join(table(("training images", "initial weights", "accuracy", "n"), rows))


def _interval(one: Difference) -> str:
    return f"{one.mean:+.2f} [{one.low:+.2f}, {one.high:+.2f}], {p_text(one.p_value)}"


def _baselines(name: str, **where: str) -> list[tuple[str, float]]:
    """Seed of the images, and accuracy on the authors' test images, of the lines of a file that have these values."""
    with (KEPT / f"{name}.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if where.items() <= line.items()]
    return [(line.get("images_seed") or line["seed"], 100 * float(line["last_10000_of_training"])) for line in lines]


def _by_images(runs: list[tuple[str, float]]) -> list[float]:
    """The mean of all runs on the same images."""
    images = dict.fromkeys(seed for seed, _ in runs)
    return [statistics.fmean(accuracy for seed, accuracy in runs if seed == one) for one in images]
