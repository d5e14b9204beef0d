"""OneHot: the logit of the true label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of


def one_hot(
    logits: Tensor,
    inputs: Tensor | Sequence[Tensor],
    targets: Tensor,
    *,
    norm: Norm = "squared_l2",
    class_dim: int = 1,
) -> Tensor:
    r"""Squared norm of the gradient of each example's true logit, :math:`\lVert J_g(x_i)^T y_i \rVert_2^2`.

    Args:
        logits: the model's output, ``[batch, *output]``.
        inputs: what it was computed from, with ``requires_grad_()`` set before the forward pass.
        targets: integer class labels.
        norm: ``"squared_l2"``, ``"l2"``, ``"l1"`` or a :class:`~gradreg.TargetSlope`.
        class_dim: the dimension of the logits that holds the classes.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> import torch
    >>> W, x = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.randn(1, 2, requires_grad=True)
    >>> one_hot(x @ W.T, x, torch.tensor([1])).item()
    16.0
    """
    return OneHot(weight=1.0, norm=norm)(probe_of(logits, inputs, targets=targets, class_dim=class_dim))


@dataclass(frozen=True, kw_only=True, repr=False)
class OneHot(GradientPenalty):
    r"""Penalise the input gradient of the true label's logit.

    .. math:: \lVert J_g(x)^T y \rVert_2^2

    The paper's OneHot (in its source, section 2.1, left out of the published text). It does not see the other logits.

    Per-example value; reduced by mean over the batch. One extra backward pass, differentiated twice.
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.OneHot(weight=0.03))(model, x, y)
    >>> torch.allclose(terms.penalties["one_hot"], model.weight[y].square().sum(1).mean())
    True
    """

    name: ClassVar[str] = "one_hot"
    needs_targets: ClassVar[bool] = True

    def cotangents(self, probe: Probe) -> Tensor:
        return probe.one_hot_targets().unsqueeze(0)
