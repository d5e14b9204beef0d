"""What makes results on some data doubtful, known before anything is trained."""

from __future__ import annotations

import numpy as np

from gradreg.data.dataset import Array, Dataset
from gradreg.data.errors import DataError

#: With fewer test examples than this, each decides more than five points of accuracy.
FEWEST_TEST_EXAMPLES = 20


def check_subset(dataset: Dataset, rows: Array, seed: int) -> None:
    """Refuse training examples that are all of one class: whoever learns from them says that class to everything."""
    if dataset.task != "classification":
        return
    found = np.unique(dataset.y_train[rows])
    if len(found) < 2:
        raise DataError(
            f"{dataset.name}: what seed {seed} draws to train on, {len(rows)} of {len(dataset.x_train)} examples, is all of "
            f"class {dataset.class_names[found[0]]}: there is nothing to learn. Add examples of other classes, draw more "
            "(--train-size), or equally many of each (--balanced)."
        )


def doubts(dataset: Dataset) -> list[str]:
    """What results on its test set cannot say, a sentence or two each."""
    found = []
    if len(dataset.x_test) < FEWEST_TEST_EXAMPLES:
        found.append(
            f"{dataset.name} has {len(dataset.x_test)} test examples: results on so few may be chance. Add examples."
        )
    if dataset.task == "classification":
        untested = np.delete(np.arange(dataset.num_outputs), np.unique(dataset.y_test))
        names = ", ".join(dataset.class_names[k] for k in untested[:5]) + ", ..." * (len(untested) > 5)
        if len(untested):
            found.append(f"{dataset.name} has no test examples of {names}: results say nothing about that. Add examples.")
    return found
