"""JacReg: the whole Jacobian of the probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.frob_reg import identity_rows
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of


def jac_reg(
    logits: Tensor,
    inputs: Tensor | Sequence[Tensor],
    *,
    norm: Norm = "squared_l2",
    chunk_size: int | None = None,
    class_dim: int = 1,
) -> Tensor:
    r"""Squared Frobenius norm of the Jacobian of each example's probabilities, :math:`\lVert J_f(x_i) \rVert_F^2`.

    Args:
        logits: the model's output before the softmax, ``[batch, *output]``.
        inputs: what it was computed from, with ``requires_grad_()`` set before the forward pass.
        norm: ``"squared_l2"``, ``"l2"`` (the Frobenius norm), ``"l1"`` or a :class:`~gradreg.TargetSlope`.
        chunk_size: how many rows of the Jacobian to compute at once; None means all.
        class_dim: the dimension of the logits that holds the classes.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> import torch
    >>> x = torch.zeros(1, 2, requires_grad=True)
    >>> jac_reg(x, x)  # at p = (1/2, 1/2) each entry of the softmax's Jacobian is 1/4 in size
    tensor([0.2500], grad_fn=<MeanBackward1>)
    """
    return JacReg(weight=1.0, norm=norm, chunk_size=chunk_size)(probe_of(logits, inputs, class_dim=class_dim))


@dataclass(frozen=True, kw_only=True, repr=False)
class JacReg(GradientPenalty):
    r"""The Jacobian regularizer of Sokolić et al.: penalise the Jacobian of the softmax output.

    .. math:: \lVert J_f(x) \rVert_F^2, \qquad J_f = J_{softmax} J_g,
        \qquad J_{softmax}^T e = p \odot (e - \langle p, e \rangle)

    The paper's equation 1. As the probabilities become one-hot, :math:`J_{softmax}` and with it the penalty vanish,
    while :class:`FrobReg` and :class:`SpectReg` do not. Needs no labels.

    Per-example sum over the rows; reduced by mean over the batch. One backward pass fewer than there are classes (at each
    place, where the output has several), in one vectorised pass or in chunks of ``chunk_size`` (memory of one chunk,
    computed twice): probabilities sum to one, the rows of their Jacobian to zero, and in an orthonormal basis whose first
    vector is constant the first row is zero. (The L1 norm depends on the basis, and takes all rows.)
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.JacReg(weight=1.0))(model, x, y)
    >>> bool(terms.penalties["jac_reg"] < model.weight.square().sum() / 4)  # the softmax's Jacobian has norm at most 1/2
    True
    """

    name: ClassVar[str] = "jac_reg"
    rows_are_one_jacobian: ClassVar[bool] = True

    def cotangents(self, probe: Probe) -> Tensor:
        p = probe.probabilities()
        e = identity_rows(probe) if self.norm == "l1" else contrast_rows(probe)
        return (p * (e - (p * e).sum(probe.class_dim + 1, keepdim=True))).to(p.dtype)


def contrast_rows(probe: Probe) -> Tensor:
    """Orthonormal rows whose entries sum to zero over the classes, all that there are, ``[num, 1, *output]``.

    In single precision at least: half precision does not count to a thousand classes.
    """
    place, like = probe.class_dim - 1, probe.logits
    others = [size for dim, size in enumerate(probe.output_shape) if dim != place]
    dtype = torch.promote_types(like.dtype, torch.float32)
    basis = helmert(probe.output_shape[place], dtype, like.device)
    places = torch.eye(math.prod(others), dtype=dtype, device=like.device)
    rows = basis[:, None, None, :] * places[None, :, :, None]  # no matrix product: those are of lower precision at times
    return rows.reshape(-1, 1, *others, basis.shape[1]).movedim(-1, place + 2)


def helmert(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    r"""An orthonormal basis of the vectors that sum to zero: row k is :math:`(1, \dots, 1, -k, 0, \dots, 0)`, normalised.

    >>> helmert(3, torch.float32, torch.device("cpu"))
    tensor([[ 0.7071, -0.7071,  0.0000],
            [ 0.4082,  0.4082, -0.8165]])
    """
    place = torch.arange(size, dtype=dtype, device=device)
    k = place[1:].unsqueeze(1)
    rows: Tensor = torch.where(place < k, 1.0, torch.where(place == k, -k, 0.0)) / (k * (k + 1)).sqrt()
    return rows
