"""The multilayer perceptron of the paper's SIN task."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Generator, nn

from gradreg.models.init import initialise


def mlp(
    in_features: int = 1,
    out_features: int = 1,
    *,
    hidden: Sequence[int] = (64, 64, 64, 64, 64),
    dropout: float = 0.0,
    generator: Generator | None = None,
) -> nn.Sequential:
    """Dense layers with ReLU and a linear output; inputs are flattened. By default the SIN network, 16 833 parameters.

    Args:
        in_features: numbers in one input.
        out_features: numbers in one output.
        hidden: widths of the hidden layers; five of 64 in the paper's appendix B.
        dropout: rate after each hidden layer.
        generator: draws the initial weights.

    >>> sum(p.numel() for p in mlp().parameters())
    16833
    """
    model = nn.Sequential(nn.Flatten())
    width = in_features
    for new_width in hidden:
        model.extend([nn.Linear(width, new_width), nn.ReLU()])
        if dropout:
            model.append(nn.Dropout(dropout))
        width = new_width
    model.append(nn.Linear(width, out_features))
    initialise(model, generator)
    return model
