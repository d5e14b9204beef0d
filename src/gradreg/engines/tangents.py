"""``t -> J t``, exactly by forward mode or approximately by a difference."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradreg.engines.base import DifferentiationError
from gradreg.engines.normalisation import PlainNormalisation
from gradreg.engines.twice import pytorchs_layers
from gradreg.penalties.norm import wide
from gradreg.penalties.probe import JVP

#: The logits as a function of how far each point is moved.
Function = Callable[..., Tensor]


def by_forward_mode(function: Function, points: Sequence[Tensor]) -> JVP:
    """Exact: the tangent goes through the model beside the values."""
    _load_forward_mode()
    zeros = tuple(torch.zeros_like(point) for point in points)

    def one(tangents: Sequence[Tensor]) -> Tensor:
        with pytorchs_layers(), PlainNormalisation(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward mode
            try:
                product: Tensor = torch.func.jvp(function, zeros, tuple(tangents))[1]
            except NotImplementedError as error:
                raise DifferentiationError(_without_forward_mode(error)) from error
        return product

    return _rows(points, one)


def _without_forward_mode(error: NotImplementedError) -> str:
    return (
        f"an operation of the model has no forward-mode derivative ({str(error).strip().splitlines()[0]}): use "
        "engine='double_backward' or 'finite_difference', or Forward(tangents='difference')."
    )


@cache
def _load_forward_mode() -> None:
    """PyTorch's rules for forward mode, which it loads when first used, with a warning about its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def by_difference(
    function: Function, points: Sequence[Tensor], logits: Tensor, *, central: bool, step: float | None = None
) -> JVP:
    r"""The logits a small step along the tangent, less those at the point (or a step before it), over the step.

    The step is relative: the point moves by ``step`` times its own root mean square; of several points none by more.
    """
    relative = step or default_step(logits, central=central)

    def one(tangents: Sequence[Tensor]) -> Tensor:
        h = relative * torch.stack([_rms(p) / _rms(t) for p, t in zip(points, tangents, strict=True)]).min()
        ahead = function(*[(h * t).to(t.dtype) for t in tangents])
        behind = function(*[(-h * t).to(t.dtype) for t in tangents]) if central else logits
        return (wide(ahead) - wide(behind)) / (2 * h if central else h)

    return _rows(points, one)


def check_step(step: float | None) -> None:
    if step is not None and not 0 < step < 1:
        raise ValueError(f"step={step!r} must be between 0 and 1: it is relative to the size of the input. None chooses it.")


def default_step(logits: Tensor, *, central: bool) -> float:
    r"""In double precision :math:`\epsilon^{1/2}`, central :math:`\epsilon^{1/3}`; in single 0.01, in half 0.03.

    Below 0.03 rounding takes over in bfloat16, and where ReLUs or max-pooling switch between the two points, what they
    change is divided by the step: in single precision a smaller one makes the error of such networks larger.
    """
    if logits.dtype == torch.float64:
        return math.pow(torch.finfo(logits.dtype).eps, 1 / 3 if central else 1 / 2)
    return 0.01 if logits.dtype == torch.float32 else 0.03


def _rows(points: Sequence[Tensor], one: Callable[[Sequence[Tensor]], Tensor]) -> JVP:
    """From the product with one tangent to that with several, one after the other: they share no statistics of a batch."""

    def product(tangents: Sequence[Tensor]) -> Tensor:
        return torch.stack([one(row) for row in zip(*tangents, strict=True)])

    return JVP(points, product)


def _rms(tensor: Tensor) -> Tensor:
    """Root mean square of the entries; 1 where all are zero."""
    mean = wide(tensor.detach()).square().mean()
    return torch.where(mean > 0, mean, 1).sqrt()
