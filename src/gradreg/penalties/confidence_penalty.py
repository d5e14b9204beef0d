"""ConfidencePenalty: the negative entropy of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gradreg.penalties.base import Penalty
from gradreg.penalties.probe import Probe


def confidence_penalty(logits: Tensor, *, reduction: Literal["mean", "sum"] = "mean", class_dim: int = 1) -> Tensor:
    r"""Negative entropy of each example's prediction, :math:`\sum_k p_k \log p_k`.

    Args:
        logits: the model's output before the softmax, ``[batch, *output]``.
        reduction: ``"sum"`` multiplies by the batch size, so that the mean over the batch becomes the authors' sum.
        class_dim: the dimension of the logits that holds the classes.

    Returns:
        One unweighted value for each example, ``[batch]``, the mean over positions where the output has several.

    >>> import torch
    >>> confidence_penalty(torch.zeros(1, 2))  # log(1/2)
    tensor([-0.6931])
    """
    return ConfidencePenalty(weight=1.0, reduction=reduction)(Probe(logits=logits, class_dim=class_dim))


@dataclass(frozen=True, kw_only=True, repr=False)
class ConfidencePenalty(Penalty):
    r"""Penalise confident predictions by their negative entropy (Pereyra et al.; the paper's section 4.3).

    .. math:: -H(p) = \sum_k p_k \log p_k

    Attributes:
        reduction: ``"mean"`` over the batch, or ``"sum"``, the convention of the authors' code: the paper's weights 0.01
            (MNIST, batch 50) and 0.003 (CIFAR-10, batch 128) belong to ``"sum"`` and are 0.5 and 0.384 for ``"mean"``.
            (The authors took ``log(p + 1e-6)``; here the logarithm is exact.)

    Per-example value; no extra backward pass.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.ConfidencePenalty(weight=0.01, reduction="sum"))(model, x, y)
    >>> bool(terms.total < terms.loss)
    True
    """

    name: ClassVar[str] = "confidence_penalty"

    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={self.reduction!r} is unknown: choose 'mean' or 'sum'.")

    def __call__(self, probe: Probe) -> Tensor:
        log_p = probe.log_probabilities()
        finite = log_p.clamp(min=torch.finfo(log_p.dtype).min)  # 0 log 0 = 0, for classes that a mask rules out
        negative_entropy = (log_p.exp() * finite).sum(probe.class_dim).reshape(probe.batch_size, -1).mean(1)
        return negative_entropy * (probe.batch_size if self.reduction == "sum" else 1)
