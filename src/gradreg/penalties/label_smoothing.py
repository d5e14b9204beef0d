"""LabelSmoothing: as a term added to the cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradreg.penalties.base import Penalty
from gradreg.penalties.probe import Probe


def label_smoothing(logits: Tensor, targets: Tensor, *, class_dim: int = 1) -> Tensor:
    r"""What smoothing adds to each example's cross-entropy, :math:`\log p_y - \tfrac{1}{K} \sum_k \log p_k`.

    Args:
        logits: the model's output before the softmax, ``[batch, *output]``.
        targets: integer class labels.
        class_dim: the dimension of the logits that holds the classes.

    Returns:
        One unweighted value for each example, ``[batch]``, the mean over positions where the output has several.

    >>> import torch
    >>> label_smoothing(torch.tensor([[0.0, 2.0]]), torch.tensor([1])).item()
    1.0
    """
    return LabelSmoothing(weight=1.0)(Probe(logits=logits, targets=targets, class_dim=class_dim))


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelSmoothing(Penalty):
    r"""Label smoothing, written as a penalty on the cross-entropy.

    .. math:: (1 - \varepsilon) L + \varepsilon \bar L = L + \varepsilon (\bar L - L),
        \qquad \bar L = -\tfrac{1}{K} \textstyle\sum_k \log p_k

    With :math:`\varepsilon` = ``weight`` this equals ``F.cross_entropy(..., label_smoothing=weight)``, but for class
    weights, which it does not know, and leaves ``terms.loss`` the plain, comparable cross-entropy. The paper names it beside
    the confidence penalty (section 4.3). Examples whose label is ignored (by the loss, or below zero) count as zero, in the
    mean too, where ``F.cross_entropy`` leaves them out.

    Per-example value; no extra backward pass.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.LabelSmoothing(weight=0.1))(model, x, y)
    >>> torch.allclose(terms.total, F.cross_entropy(model(x), y, label_smoothing=0.1))
    True
    """

    name: ClassVar[str] = "label_smoothing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight > 1:
            raise ValueError(
                f"weight={self.weight!r} must be at most 1: it is the share of the label spread over all classes."
            )

    def __call__(self, probe: Probe) -> Tensor:
        log_p = probe.log_probabilities()
        above_mean = log_p - log_p.mean(probe.class_dim, keepdim=True)
        difference = (probe.one_hot_targets() * above_mean).sum(probe.class_dim)  # zero where a label is ignored
        return difference.reshape(probe.batch_size, -1).mean(1)
