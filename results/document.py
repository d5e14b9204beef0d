"""Write docs/reproduction.md, its pictures and the summary of the README anew from results/varga2018."""

from __future__ import annotations

import csv
from pathlib import Path

from gradreg.papers.results import Results
from gradreg.papers.varga2018 import experiments
from gradreg.report.drawing import house_style
from gradreg.report.reproduction import Records, body, disagreements, headline
from gradreg.report.reproduction_figures import CAPTIONS, draw
from gradreg.study.statistics import Summary

ROOT = Path(__file__).parent.parent
PAGE, README, IMAGES = ROOT / "docs" / "reproduction.md", ROOT / "README.md", ROOT / "docs" / "images"
PROTOCOL = "authors_code"
#: The figure that belongs to an experiment stands below its table.
FIGURES = {
    "table7": ("sin_errors", "sin_functions"),
    "train_size": ("train_size",),
    "weight_norm": ("weight_norm",),
    "mnist_gradients": ("mnist_gradients",),
}


def recorded() -> dict[str, Records]:
    results = Results(ROOT / "results" / "varga2018" / PROTOCOL)
    return {name: results.load(experiment) for name, experiment in experiments(PROTOCOL).items()}


def generated() -> str:
    """All that is between the markers of the page."""
    known, records = experiments(PROTOCOL), recorded()
    parts = [
        f"**{headline(list(known.values()), records)}**",
        "## Disagreements first",
        "\n".join(disagreements(list(known.values()), records)),
        _two_test_sets(),
        _picture("differences"),
    ]
    for name, experiment in known.items():
        parts += [f"## `{name}`: {experiment.title}", f"{experiment.where}.", "\n".join(body(experiment, records[name]))]
        parts += [_picture(figure) for figure in FIGURES.get(name, ())]
    return "\n\n".join(parts)


def summary() -> str:
    """The sentence of the README."""
    return headline(list(experiments(PROTOCOL).values()), recorded())


def _two_test_sets() -> str:
    with (ROOT / "results" / "varga2018" / "two_test_sets.csv").open() as file:
        lines = list(csv.DictReader(file))
    official, theirs = (Summary.of([100 * float(line[n]) for line in lines]) for n in ("official", "last_10000_of_training"))
    return (
        f"{official.n} further baselines of small MNIST, trained on other subsets on the CPU in single precision, have "
        f"{official.mean:.2f} ({official.std:.2f}) on the official test set and {theirs.mean:.2f} ({theirs.std:.2f}) on the "
        "last 10 000 training images, which the authors tested on (`results/two_test_sets.py`)."
    )


def _picture(name: str) -> str:
    return f"![{name.replace('_', ' ')}](images/reproduction_{name}.png)\n\n*{CAPTIONS[name]}*"


def _between(path: Path, marker: str, text: str) -> None:
    before, _, rest = path.read_text().partition(f"<!-- {marker} -->\n")
    after = rest.partition(f"<!-- /{marker} -->")[2]
    path.write_text(f"{before}<!-- {marker} -->\n{text}\n<!-- /{marker} -->{after}")


def main() -> None:
    for name, figure in draw(experiments(PROTOCOL), recorded()).items():
        with house_style():
            figure.savefig(IMAGES / f"reproduction_{name}.png", dpi=120)
    _between(PAGE, "generated", generated())
    _between(README, "reproduction", summary())


if __name__ == "__main__":
    main()
