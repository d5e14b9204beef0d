"""TopK: the largest logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of


def top_k(
    logits: Tensor,
    inputs: Tensor | Sequence[Tensor],
    *,
    k: int = 1,
    norm: Norm = "squared_l2",
    class_dim: int = 1,
) -> Tensor:
    r"""Squared norm of the gradient of the sum of the k largest logits.

    Args:
        logits: the model's output, ``[batch, *output]``.
        inputs: what it was computed from, with ``requires_grad_()`` set before the forward pass.
        k: how many logits to add up.
        norm: ``"squared_l2"``, ``"l2"``, ``"l1"`` or a :class:`~gradreg.TargetSlope`.
        class_dim: the dimension of the logits that holds the classes.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> W, x = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> top_k(x @ W.T, x, k=1).item()
    9.0
    """
    return TopK(weight=1.0, k=k, norm=norm)(probe_of(logits, inputs, class_dim=class_dim))


@dataclass(frozen=True, kw_only=True, repr=False)
class TopK(GradientPenalty):
    r"""Penalise the input gradient of the sum of the k largest logits.

    .. math:: \lVert J_g(x)^T \textstyle\sum_{j \in \mathrm{top}_k} e_j \rVert_2^2

    A mode of the authors' code that they never published; the choice of logits is not differentiated. With k = 1 it
    is :class:`OneHot` on the predicted label. Needs no labels.

    Attributes:
        k: how many of the largest logits to add up.

    Per-example value; reduced by mean over the batch. One extra backward pass, differentiated twice.
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.TopK(weight=0.03, k=3))(model, x, y)
    >>> torch.allclose(terms.penalties["top_k"], model.weight.sum(0).square().sum())
    True
    """

    name: ClassVar[str] = "top_k"

    k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise ValueError(f"k={self.k!r} must be at least 1: it is a number of logits.")

    def cotangents(self, probe: Probe) -> Tensor:
        probe.check_classes()
        num_classes = probe.logits.shape[probe.class_dim]
        if self.k > num_classes:
            raise ValueError(f"k={self.k} logits do not exist in {num_classes} classes: use at most {num_classes}.")
        largest = probe.logits.topk(self.k, dim=probe.class_dim).indices
        return torch.zeros_like(probe.logits).scatter(probe.class_dim, largest, 1.0).unsqueeze(0)
