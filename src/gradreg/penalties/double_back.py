"""DoubleBack: the gradient of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of


def double_back(loss: Tensor, inputs: Tensor | Sequence[Tensor], *, norm: Norm = "squared_l2") -> Tensor:
    r"""Squared norm of the input gradient of each example's loss, :math:`\lVert \partial L_i / \partial x_i \rVert_2^2`.

    Args:
        loss: per-example losses, ``[batch]`` (``reduction="none"``).
        inputs: what the loss was computed from, with ``requires_grad_()`` set before the forward pass.
        norm: ``"squared_l2"``, ``"l2"``, ``"l1"`` or a :class:`~gradreg.TargetSlope`.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
    >>> double_back((x**2).squeeze(1), x)
    tensor([ 4., 16.], grad_fn=<MeanBackward1>)
    """
    if loss.ndim != 1:
        raise ValueError(f"loss has shape {tuple(loss.shape)}, expected [batch]: compute it with reduction='none'.")
    probe = replace(probe_of(loss, inputs), loss_gradient=lambda: torch.ones_like(loss))
    return DoubleBack(weight=1.0, norm=norm)(probe)


@dataclass(frozen=True, kw_only=True, repr=False)
class DoubleBack(GradientPenalty):
    r"""Double backpropagation (DataGrad): penalise the input gradient of the loss itself.

    .. math:: \lVert \tfrac{\partial}{\partial x} L(x, y, \Theta) \rVert_2^2 = \lVert J_g(x)^T (p - y) \rVert_2^2

    The right-hand side holds for cross-entropy (the paper's equation for :math:`J_{loss}`, section 2.3): the
    projection of the logits' Jacobian on the error. It vanishes as the network fits the labels, so its weight is
    large (the paper: 1 to 50) and needs tuning.

    Per-example loss; reduced by mean over the batch. One extra backward pass, differentiated twice.
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> objective = gr.Objective(F.cross_entropy, gr.DoubleBack(weight=10))
    >>> sorted(objective(model, x, y).penalties)
    ['double_back']
    """

    name: ClassVar[str] = "double_back"
    needs_targets: ClassVar[bool] = True

    def cotangents(self, probe: Probe) -> Tensor:
        if probe.loss_gradient is None:
            raise ValueError(
                "DoubleBack needs the loss, and this probe has none: use an Objective or functional.double_back."
            )
        return probe.loss_gradient().unsqueeze(0)
