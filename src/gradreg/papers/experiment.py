"""An experiment of a paper as data: cells with their configurations, the published numbers, and the claims."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gradreg.training import RunConfig


@dataclass(frozen=True)
class Published:
    """A number as it was printed: mean and standard deviation over runs; no deviation where none was given."""

    mean: float
    std: float | None = None
    num_runs: int = 10


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a cell shows.

    Attributes:
        name: in the records.
        factor: from the unit of the records to the one that is printed.
        unit: that is printed.
        digits: after the point.
        higher_is_better: whether it is.
    """

    name: str = "accuracy"
    factor: float = 100.0
    unit: str = "%"
    digits: int = 2
    higher_is_better: bool = True


ACCURACY = Metric()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table, or one point of a figure: where it stands, and the run that gives it, for any seed."""

    row: str
    column: str
    config: RunConfig
    published: Published | None = None
    metric: Metric = ACCURACY

    @property
    def place(self) -> tuple[str, str]:
        return self.row, self.column

    def configs(self, num_runs: int) -> list[RunConfig]:
        """Its runs, with seeds that count from the config's."""
        seeds = range(self.config.seed, self.config.seed + num_runs)
        return [replace(self.config, seed=seed, arm=f"{self.row}, {self.column}") for seed in seeds]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper as a test: the runs of one cell are better than those of another, or no different.

    Attributes:
        text: what the paper says.
        better, worse: places of the two cells.
        equal: the paper finds no significant difference.
        comparisons: how many tests Bonferroni's correction counts.
    """

    text: str
    better: tuple[str, str]
    worse: tuple[str, str]
    equal: bool = False
    comparisons: int = 1


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper.

    Attributes:
        id: its name on the command line.
        title: what it shows.
        where: in the paper.
        cells: its numbers.
        claims: what the paper says of them.
        deviations: what is known to differ from what the authors did.
        num_runs: seeds of each cell.
    """

    id: str
    title: str
    where: str
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...] = ()
    deviations: tuple[str, ...] = ()
    num_runs: int = 10

    def __post_init__(self) -> None:
        places = [cell.place for cell in self.cells]
        if len(set(places)) != len(places):
            raise ValueError(f"{self.id}: two cells stand at one place.")
        for claim in self.claims:
            if missing := {claim.better, claim.worse} - set(places):
                raise ValueError(f"{self.id}: {claim.text!r} speaks of cells that are not there: {sorted(missing)}.")

    def cell(self, row: str, column: str) -> Cell:
        return next(cell for cell in self.cells if cell.place == (row, column))

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


def arm_id(config: RunConfig) -> str:
    """The same for all runs of an arm, whichever seed, label or copy of the data."""
    return replace(config, seed=0, arm="", fingerprint="").key


def distinct_runs(experiments: Iterable[Experiment]) -> list[RunConfig]:
    """All runs of these experiments, those that several share once."""
    found: dict[tuple[str, int], RunConfig] = {}
    for experiment in experiments:
        for cell in experiment.cells:
            for config in cell.configs(experiment.num_runs):
                found.setdefault((arm_id(config), config.seed), config)
    return list(found.values())
