"""SoftmaxProjection: the logits weighted by their probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of


def softmax_projection(
    logits: Tensor, inputs: Tensor | Sequence[Tensor], *, norm: Norm = "squared_l2", class_dim: int = 1
) -> Tensor:
    r"""Squared norm of the gradient of the expected logit, :math:`\lVert \partial_x \langle p, g(x_i) \rangle \rVert_2^2`.

    Args:
        logits: the model's output, ``[batch, *output]``.
        inputs: what it was computed from, with ``requires_grad_()`` set before the forward pass.
        norm: ``"squared_l2"``, ``"l2"``, ``"l1"`` or a :class:`~gradreg.TargetSlope`.
        class_dim: the dimension of the logits that holds the classes.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> import torch
    >>> x = torch.zeros(1, 2, requires_grad=True)
    >>> softmax_projection(x, x).item()  # p = (1/2, 1/2) and equal logits: the gradient is p
    0.5
    """
    return SoftmaxProjection(weight=1.0, norm=norm)(probe_of(logits, inputs, class_dim=class_dim))


@dataclass(frozen=True, kw_only=True, repr=False)
class SoftmaxProjection(GradientPenalty):
    r"""Penalise the input gradient of the logits weighted by their own probabilities.

    .. math:: \lVert \tfrac{\partial}{\partial x} \langle p, g(x) \rangle \rVert_2^2 = \lVert J_g(x)^T c \rVert_2^2,
        \qquad c = p \odot (1 + g - \langle p, g \rangle)

    A mode of the authors' code that they never published; as there, the probabilities are differentiated too.
    Needs no labels.

    Per-example value; reduced by mean over the batch. One extra backward pass, differentiated twice.
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.SoftmaxProjection(weight=0.03))(model, x, y)
    >>> terms.total.backward()
    """

    name: ClassVar[str] = "softmax_projection"

    def cotangents(self, probe: Probe) -> Tensor:
        p = probe.probabilities()
        g = probe.logits.masked_fill(probe.logits == -math.inf, 0)  # of classes that a mask rules out, where p = 0
        return (p * (1 + g - (p * g).sum(probe.class_dim, keepdim=True))).unsqueeze(0)
