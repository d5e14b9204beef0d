"""The test set of data that come without one."""

from __future__ import annotations

import numpy as np

from gradreg.data.dataset import Array

#: Decides the test set, for good: a different one would make results incomparable.
TEST_SEED = 1712_09936


def hold_out(num_examples: int, num_test: int, classes: Array | None = None) -> tuple[Array, Array]:
    """Indices of training and test examples, always the same ones, each in the original order.

    Given ``classes``, one example of every class stays in the training data.

    >>> train, test = hold_out(10, 3)
    >>> len(train), len(test), len(set(train) | set(test))
    (7, 3, 10)
    """
    order = np.random.Generator(np.random.PCG64(TEST_SEED)).permutation(num_examples)
    if classes is not None:
        first = np.unique(classes[order], return_index=True)[1]
        order = np.concatenate([order[first], np.delete(order, first)])
    cut = num_examples - num_test
    return np.sort(order[:cut]), np.sort(order[cut:])
