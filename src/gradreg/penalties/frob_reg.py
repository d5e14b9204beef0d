"""FrobReg: the whole Jacobian of the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of


def frob_reg(
    logits: Tensor,
    inputs: Tensor | Sequence[Tensor],
    *,
    norm: Norm = "squared_l2",
    chunk_size: int | None = None,
) -> Tensor:
    r"""Squared Frobenius norm of the Jacobian of each example's logits, :math:`\lVert J_g(x_i) \rVert_F^2`.

    Args:
        logits: the model's output, ``[batch, *output]``.
        inputs: what it was computed from, with ``requires_grad_()`` set before the forward pass.
        norm: ``"squared_l2"``, ``"l2"`` (the Frobenius norm), ``"l1"`` or a :class:`~gradreg.TargetSlope`.
        chunk_size: how many rows of the Jacobian to compute at once; None means all.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> W, x = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.randn(1, 2, requires_grad=True)
    >>> frob_reg(x @ W.T, x).item()
    25.0
    """
    return FrobReg(weight=1.0, norm=norm, chunk_size=chunk_size)(probe_of(logits, inputs))


@dataclass(frozen=True, kw_only=True, repr=False)
class FrobReg(GradientPenalty):
    r"""Penalise the exact squared Frobenius norm of the Jacobian of the logits.

    .. math:: \lVert J_g(x) \rVert_F^2 = \sum_k \lVert \tfrac{\partial}{\partial x} g_k(x) \rVert_2^2

    The paper's FrobReg (section 2.1). For a linear model it is weight decay. Needs no labels.

    Per-example sum over the rows; reduced by mean over the batch. As many backward passes as outputs, in one vectorised
    pass (memory grows with them) or in chunks of ``chunk_size`` (memory of one chunk, computed twice). :class:`SpectReg`
    estimates the same quantity for one backward pass.
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.FrobReg(weight=0.03))(model, x, y)
    >>> torch.allclose(terms.penalties["frob_reg"], model.weight.square().sum())
    True
    """

    name: ClassVar[str] = "frob_reg"
    isotropic: ClassVar[bool] = True
    rows_are_one_jacobian: ClassVar[bool] = True

    def cotangents(self, probe: Probe) -> Tensor:
        return identity_rows(probe)


def identity_rows(probe: Probe) -> Tensor:
    """One basis vector of the output space a row, ``[num_outputs, 1, *output]``."""
    eye = torch.eye(probe.num_outputs, dtype=probe.logits.dtype, device=probe.logits.device)
    return eye.reshape(probe.num_outputs, 1, *probe.output_shape)
