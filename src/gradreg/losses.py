"""The loss of a batch and of each example, from whatever loss function the user has."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: ``loss(logits, targets)``: ``F.cross_entropy``, an ``nn.Module`` loss, or any function.
Loss = Callable[..., Tensor]


def batch_loss(loss: Loss, logits: Tensor, targets: Any) -> Tensor:
    """The loss as the user's function gives it; the mean if it gives one value an example."""
    value = loss(logits, targets)
    return value if value.ndim == 0 else value.mean()


#: Losses that compare each output with a number of its own, and those for labels of which several may hold.
_ELEMENTWISE = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
_OF_LABELS = (
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.multilabel_soft_margin_loss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.MultiLabelSoftMarginLoss,
)


def reads_outputs_alone(loss: Loss) -> bool:
    """Whether every output has a label of its own, as far as the loss is one of PyTorch's."""
    return _kind(loss) in _OF_LABELS


def check_shapes(loss: Loss, logits: Tensor, targets: Any) -> None:
    """Raise where PyTorch would compare every example with every other, and only warn."""
    if _kind(loss) in _ELEMENTWISE and isinstance(targets, Tensor) and not _fits(targets.shape, logits.shape):
        raise ValueError(
            f"the output has shape {tuple(logits.shape)} and the targets {tuple(targets.shape)}: this loss compares them "
            "number by number. Use y.unsqueeze(1), or model(x).squeeze(1)."
        )


def _fits(shape: torch.Size, into: torch.Size) -> bool:
    return len(shape) <= len(into) and all(one in (1, other) for one, other in zip(shape[::-1], into[::-1], strict=False))


def _kind(loss: Loss) -> object:
    function = loss.func if isinstance(loss, partial) else loss
    return type(function) if isinstance(function, nn.Module) else function


def example_losses(loss: Loss, logits: Tensor, targets: Any) -> Tensor:
    """The loss of each example, ``[batch]``.

    Where an example has several positions, their mean, or their sum for losses that are a sum or ``batchmean``. Class
    weights stay in; positions that the loss ignores count as zero.
    """
    return _by_example(unreduced(loss)(logits, targets), logits, reduction_of(loss))


def _by_example(values: Tensor, logits: Tensor, reduction: str | None) -> Tensor:
    if values.ndim == 0 or values.numel() % len(logits):
        raise ValueError(
            f"the loss returned shape {tuple(values.shape)} for a batch of {len(logits)}, and DoubleBack needs the loss of "
            "each example. Pass a loss that takes reduction='none' (as those of torch.nn.functional do) or returns [batch]."
        )
    positions = values.reshape(len(logits), -1)
    return positions.sum(1) if reduction in ("sum", "batchmean") else positions.mean(1)


def example_loss_gradient(loss: Loss, logits: Tensor, targets: Any) -> Tensor:
    """Derivative of each example's loss by its logits, itself differentiable. Buffers of the loss stay as they are."""
    try:
        gradient: Tensor = torch.func.grad(lambda logits: example_losses(loss, logits, targets).sum())(logits)
    except RuntimeError as error:
        if "setup_context" in str(error):
            raise TypeError(
                f"the loss {getattr(loss, '__qualname__', loss)} has a derivative of its own that is not known to be "
                "differentiable again (an autograd.Function without setup_context), and DoubleBack differentiates it: write "
                "the loss in PyTorch's operations, give its Function a setup_context, or use SpectReg."
            ) from error
        if isinstance(loss, nn.Module) and [*loss.buffers()] and torch._C._functorch.maybe_current_level() is None:
            return _gradient_on_copies(loss, logits, targets)
        raise
    return gradient


def _gradient_on_copies(loss: nn.Module, logits: Tensor, targets: Any) -> Tensor:
    """For a loss that changes its buffers, which a transform may not see."""
    buffers = {name: buffer.clone() for name, buffer in loss.named_buffers()}
    values = torch.func.functional_call(unreduced(loss), buffers, (logits, targets))  # type: ignore[arg-type]
    total = _by_example(values, logits, reduction_of(loss)).sum()
    return torch.autograd.grad(total, logits, create_graph=True)[0]


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
