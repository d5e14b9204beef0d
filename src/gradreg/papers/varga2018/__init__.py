"""Varga, Csiszárik, Zombori: Gradient Regularization Improves Accuracy of Discriminative Models (2018)."""

from __future__ import annotations

from dataclasses import replace

from gradreg.data.authors import SUFFIX
from gradreg.papers.experiment import Experiment
from gradreg.papers.varga2018 import deviations, figures, tables
from gradreg.papers.varga2018.protocols import PROTOCOLS, Protocol, protocol

#: Pictures that they drew; their SIN belongs to every protocol.
THEIRS = tuple(f"{name}{SUFFIX}" for name in ("mnist", "cifar10", "cifar100"))
TABLES = (tables.table1, tables.table2, tables.table3, tables.table4, tables.table5, tables.table6, tables.table7)
FIGURES = (
    figures.train_size,
    figures.weight_norm,
    figures.sin_domain,
    figures.sin_gradients,
    figures.mnist_gradients,
    figures.plateaus,
    figures.sawtooth,
    figures.full_data,
)


def experiments(name: str = "authors_code") -> dict[str, Experiment]:
    """All experiments of the paper under one protocol, by their ids.

    >>> list(experiments())[:3]
    ['table1', 'table2', 'table3']
    """
    found = [make(protocol(name)) for make in (*TABLES, *FIGURES)]
    if name in CHANGED:
        found = [CHANGED[name](experiment) for experiment in found]
    return {experiment.id: experiment for experiment in found}


def _with_their_seeds(experiment: Experiment) -> Experiment:
    """Says what is theirs, instead of how ours differs."""
    if not any(cell.config.data in THEIRS for cell in experiment.cells):
        return experiment
    others = (text for text in experiment.deviations if not text.endswith(deviations.MNIST[0]))
    return replace(experiment, deviations=(deviations.SEEDS, *others))


def _shortened(experiment: Experiment) -> Experiment:
    """Says first that its numbers are not those of the paper's training."""
    if not any(cell.config.data.startswith("cifar") for cell in experiment.cells):
        return experiment
    return replace(experiment, deviations=(deviations.SHORT, *experiment.deviations))


#: What a protocol changes of experiments beside their configs.
CHANGED = {"short": _shortened, "authors_seeds": _with_their_seeds}

__all__ = ["FIGURES", "PROTOCOLS", "TABLES", "Protocol", "experiments", "protocol"]
