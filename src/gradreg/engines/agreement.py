"""Does a model that is run twice compute the same?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradreg.engines.base import DifferentiationError
from gradreg.engines.recorded import Model
from gradreg.engines.tangents import Function, forward_mode, unmasked

#: How far apart two passes may be, relative to the logits, where the coarsest precision in the model is this one. Rounding
#: is far below in single and double precision; in half it grows with depth, more so in forward mode with its own operations.
APART = {torch.float64: 1e-6, torch.float32: 1e-2}
APART_IN_HALF, APART_IN_HALF_FORWARD = 0.05, 0.3


def check_agrees(
    model: Model, function: Function, points: Sequence[Tensor], logits: Tensor, *, in_forward_mode: bool
) -> None:
    """Raise where the pass run again gives other logits: value and derivative would be those of two functions.

    Args:
        model: whose pass it is.
        function: the logits of the pass run again, by how far the points are moved.
        points: where they are.
        logits: what the first pass gave.
        in_forward_mode: whether it will be run in forward mode, where some layers are computed in another way.
    """
    inside = coarsest_precision(model, logits, *points)
    zeros = [torch.zeros_like(point) for point in points]
    with torch.no_grad():
        if _apart(function(*zeros), logits) > APART.get(inside, APART_IN_HALF):
            raise DifferentiationError(
                "the model gives other logits when it is run again on the same batch, so that value and derivative of the "
                "penalty would be of two functions. What it takes from elsewhere (random numbers of a generator of its own, "
                "random or numpy; a counter) cannot be repeated: use engine='double_backward', which runs it once."
            )
        if not in_forward_mode:
            return
        if _apart(forward_mode(function, zeros, zeros)[0], logits) > APART.get(inside, APART_IN_HALF_FORWARD):
            raise DifferentiationError(
                "the model gives other logits in forward mode than in an ordinary pass, as where a layer draws another "
                "dropout mask there: use engine='double_backward' or 'finite_difference'."
            )


def coarsest_precision(model: Model, *tensors: Tensor) -> torch.dtype:
    """Of what the model computes with: these tensors, its parameters, autocast."""
    dtypes = {tensor.dtype for tensor in tensors}
    if isinstance(model, nn.Module):
        dtypes |= {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _apart(again: Tensor, logits: Tensor) -> float:
    whole = unmasked(logits).norm()
    return float((unmasked(again) - unmasked(logits)).norm() / torch.where(whole > 0, whole, 1))
