"""SpectReg: a random projection of the logits' Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of

Projection = Literal["gaussian", "sphere", "rademacher", "orthogonal"]


def spect_reg(
    logits: Tensor,
    inputs: Tensor | Sequence[Tensor],
    *,
    projection: Projection = "gaussian",
    num_projections: int = 1,
    per_example: bool = False,
    norm: Norm = "squared_l2",
    chunk_size: int | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""Squared norm of a random projection of the logits' Jacobian, :math:`\lVert J_g(x_i)^T r \rVert_2^2`.

    Args:
        logits: the model's output, ``[batch, *output]``.
        inputs: what it was computed from, with ``requires_grad_()`` set before the forward pass.
        projection: the distribution of r, as for :class:`SpectReg`.
        num_projections: how many to average over.
        per_example: draw r for every example rather than once for the batch.
        norm: ``"squared_l2"``, ``"l2"``, ``"l1"`` or a :class:`~gradreg.TargetSlope`.
        chunk_size: how many projections to differentiate at once; None means all.
        generator: where r is drawn from; None means PyTorch's global generator.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> W, x = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.randn(1, 2, requires_grad=True)
    >>> round(spect_reg(x @ W.T, x, projection="orthogonal", num_projections=2).item(), 4)
    25.0
    """
    penalty = SpectReg(
        weight=1.0,
        projection=projection,
        num_projections=num_projections,
        per_example=per_example,
        norm=norm,
        chunk_size=chunk_size,
    )
    return penalty(probe_of(logits, inputs, generator=generator))


@dataclass(frozen=True, kw_only=True, repr=False)
class SpectReg(GradientPenalty):
    r"""The paper's spectral regularizer: penalise one random projection of the Jacobian of the logits.

    .. math:: \lVert J_g(x)^T r \rVert_2^2, \qquad \mathbb{E}_r \lVert J_g(x)^T r \rVert_2^2 = \lVert J_g(x) \rVert_F^2
        \quad \text{if } \mathbb{E}[r r^T] = I_m

    The paper's definition of SpectReg and its Claim 1. Every projection here has identity covariance, so all
    estimate :class:`FrobReg` and share its weight; they differ in variance:

    - ``"gaussian"``: :math:`r \sim N(0, I_m)`, the paper and the authors' code;
    - ``"sphere"``: uniform on the sphere of radius :math:`\sqrt m`. The paper's spherical variant, on the *unit* sphere,
      is this divided by m, the number of outputs (its text states the factors of the two the wrong way round);
    - ``"rademacher"``: independent signs, the least variance of draws with independent entries;
    - ``"orthogonal"``: ``num_projections`` mutually orthogonal directions of length :math:`\sqrt m`, exact when there are m.

    Attributes:
        projection: the distribution of r.
        num_projections: how many to average over.
        per_example: draw r for every example, rather than once for the batch as the authors did. Under batch norm in
            training mode the two penalise different things, since there the gradient runs across examples.

    Needs no labels. Mean over projections for each example; reduced by mean over the batch. ``num_projections``
    extra backward passes, differentiated twice.
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.03))
    >>> terms = objective(model, x, y, generator=torch.Generator().manual_seed(0))
    >>> terms.total.backward()
    """

    name: ClassVar[str] = "spect_reg"
    isotropic: ClassVar[bool] = True

    projection: Projection = "gaussian"
    num_projections: int = 1
    per_example: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projection not in _DRAW:
            raise ValueError(f"projection={self.projection!r} is unknown: choose one of {', '.join(map(repr, _DRAW))}.")
        if not isinstance(self.num_projections, int) or self.num_projections < 1:
            raise ValueError(f"num_projections={self.num_projections!r} must be at least 1 and whole.")

    @property
    def num_samples(self) -> int:
        return self.num_projections

    def cotangents(self, probe: Probe) -> Tensor:
        num_draws = probe.batch_size if self.per_example else 1
        r = _DRAW[self.projection](probe, self.num_projections, num_draws)
        return r.reshape(self.num_projections, num_draws, *probe.output_shape)


def _gaussian(probe: Probe, num: int, num_draws: int) -> Tensor:
    return probe.normal(num, num_draws, probe.num_outputs)


def _sphere(probe: Probe, num: int, num_draws: int) -> Tensor:
    r = _gaussian(probe, num, num_draws)
    return math.sqrt(probe.num_outputs) * torch.nn.functional.normalize(r, dim=-1)


def _rademacher(probe: Probe, num: int, num_draws: int) -> Tensor:
    return probe.signs(num, num_draws, probe.num_outputs)


def _orthogonal(probe: Probe, num: int, num_draws: int) -> Tensor:
    m = probe.num_outputs
    if num > m:
        raise ValueError(
            f"num_projections={num} orthogonal directions do not exist for {m} outputs: use at most {m}, which is exact."
        )
    gaussian = probe.normal(num_draws, m, num)
    wide = gaussian if gaussian.dtype == torch.float64 else gaussian.float()  # QR has no half-precision kernel
    q, r = torch.linalg.qr(wide)
    directions: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # else QR prefers one sign
    return math.sqrt(m) * directions.to(gaussian.dtype).movedim(-1, 0)


_DRAW: dict[str, Callable[[Probe, int, int], Tensor]] = {
    "gaussian": _gaussian,
    "sphere": _sphere,
    "rademacher": _rademacher,
    "orthogonal": _orthogonal,
}
