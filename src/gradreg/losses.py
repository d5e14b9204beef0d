"""The loss of a batch and of each example, from whatever loss function the user has."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

#: ``loss(logits, targets)``: ``F.cross_entropy``, an ``nn.Module`` loss, or any function.
Loss = Callable[..., Tensor]


def batch_loss(loss: Loss, logits: Tensor, targets: Any) -> Tensor:
    """The loss as the user's function gives it; the mean if it gives one value an example."""
    value = loss(logits, targets)
    return value if value.ndim == 0 else value.mean()


def example_losses(loss: Loss, logits: Tensor, targets: Any) -> Tensor:
    """The loss of each example, ``[batch]``.

    Where an example has several positions, their mean, or their sum for losses that are a sum or ``batchmean``. Class
    weights stay in; positions that the loss ignores count as zero.
    """
    values = unreduced(loss)(logits, targets)
    if values.ndim == 0 or values.numel() % len(logits):
        raise ValueError(
            f"the loss returned shape {tuple(values.shape)} for a batch of {len(logits)}, and DoubleBack needs the loss of "
            "each example. Pass a loss that takes reduction='none' (as those of torch.nn.functional do) or returns [batch]."
        )
    positions = values.reshape(len(logits), -1)
    return positions.sum(1) if reduction_of(loss) in ("sum", "batchmean") else positions.mean(1)


def example_loss_gradient(loss: Loss, logits: Tensor, targets: Any) -> Tensor:
    """Derivative of each example's loss by its logits, itself differentiable."""

    def total(logits: Tensor) -> Tensor:
        return example_losses(loss, logits, targets).sum()

    gradient: Tensor = torch.func.grad(total)(logits)
    return gradient


def reduction_of(loss: Loss) -> str | None:
    """``"mean"``, ``"sum"``, ... where the loss says; None where it has no such thing."""
    reduction: str | None = _setting(loss, "reduction")
    return reduction


def ignored_label(loss: Loss) -> int | None:
    """The label that the loss leaves out, as ``ignore_index`` of the cross-entropy; None where it has no such thing."""
    label = _setting(loss, "ignore_index")
    return label if isinstance(label, int) else None


def _setting(loss: Loss, name: str) -> Any:
    if isinstance(loss, nn.Module):
        return getattr(loss, name, None)
    try:
        parameter = inspect.signature(loss).parameters.get(name)
    except (TypeError, ValueError):  # builtins have no signature
        return None
    return None if parameter is None else parameter.default


def unreduced(loss: Loss) -> Loss:
    """The same loss without its reduction, where it has one."""
    if reduction_of(loss) is None:
        return loss
    if isinstance(loss, nn.Module):
        bare = copy.copy(loss)
        bare.__dict__["reduction"] = "none"
        return bare
    return lambda logits, targets: loss(logits, targets, reduction="none")
