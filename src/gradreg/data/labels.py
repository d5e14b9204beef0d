"""What labels mean that nobody has explained: classes, or a quantity. One rule for arrays, tables and the hub."""

from __future__ import annotations

import numpy as np

from gradreg.data.dataset import Array, Task
from gradreg.data.errors import DataError

#: Labels with more distinct values than this need enough examples of each; numbers, some of them fractions, are a quantity.
MAX_CLASSES = 20

#: With fewer examples of a class than this on average, a fifth of them leaves less than one to test on.
EXAMPLES_PER_CLASS = 5

ASK_FOR_A_QUANTITY = "say task='regression' (--task regression)"


def task_of(name: str, key: str, labels: Array) -> Task:
    """Texts and whole numbers are classes; numbers with a fraction are a quantity if more than 20 are different.

    Several numbers for each example are quantities, unless they are one-hot. Too many kinds
    of texts or whole numbers are refused.

    >>> task_of("pets", "y", np.array([0.0, 1.0, 1.0]))
    'classification'
    >>> task_of("pets", "y", np.arange(30) / 4)
    'regression'
    """
    if labels.dtype.kind not in "fiuUS":
        return "classification"
    if labels.size != len(labels):
        return "regression" if labels.dtype.kind == "f" and not _is_one_hot(labels) else "classification"
    values = np.unique(labels)
    are_numbers = labels.dtype.kind in "fiu"
    if are_numbers and (values % 1).any():
        return "regression" if len(values) > MAX_CLASSES else "classification"
    if len(values) > max(MAX_CLASSES, len(labels) // EXAMPLES_PER_CLASS):
        kind = "whole numbers" if are_numbers else f"texts, such as {class_name(values[0])!r},"
        or_else = (
            f"If they are a quantity, {ASK_FOR_A_QUANTITY}" if are_numbers else "If they are names, predict another column"
        )
        raise DataError(
            f"{name}: {key} has {len(values)} different {kind} in {len(labels)} rows, too many to be classes by themselves. "
            f"{or_else}; if they are classes, task='classification' (--task classification)."
        )
    return "classification"


def _is_one_hot(labels: Array) -> bool:
    rows = labels.reshape(len(labels), -1)
    return bool(np.isin(rows, (0, 1)).all() and (rows.sum(1) == 1).all())


def class_name(label: object) -> str:
    """A label as text, whole numbers without a decimal point.

    >>> class_name(np.float32(3)), class_name(np.float64(0.5)), class_name(np.str_("cat"))
    ('3', '0.5', 'cat')
    """
    return np.format_float_positional(label, trim="-") if isinstance(label, np.floating) else str(label)
