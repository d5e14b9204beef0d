"""What is measured of a trained model, as functions of tensors that a fleet can vectorise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

#: A model in evaluation mode: from inputs to outputs.
Call = Callable[[Tensor], Tensor]


def predict(call: Call, x: Tensor, batch_size: int) -> Tensor:
    """The outputs, batch by batch, in single precision at least."""
    outputs = [call(batch) for batch in torch.split(x, batch_size)]
    return torch.cat([output if output.dtype == torch.float64 else output.float() for output in outputs])


def evaluation_batch(model: nn.Module, batch_size: int) -> int:
    """Large, unless batch norm takes its statistics from the batch at test time too: then as in training."""
    uses_batch = any(isinstance(m, _BatchNorm) and m.running_mean is None for m in model.modules())
    return batch_size if uses_batch else max(batch_size, 1000)


def classification_metrics(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Accuracy, top-5 accuracy where there are more classes, and cross-entropy. What is not a number is wrong."""
    finite = logits.isfinite().all(1)
    metrics = {"accuracy": ((logits.argmax(1) == y) & finite).float().mean()}
    if logits.shape[1] > 5:
        metrics["top5"] = ((logits.topk(5, dim=1).indices == y[:, None]).any(1) & finite).float().mean()
    return metrics | {"loss": F.cross_entropy(logits, y)}


def regression_metrics(prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Mean squared error, in the unit of the targets."""
    return {"mse": F.mse_loss(prediction, y.to(prediction.dtype))}


def squared_weight_norm(parameters: Mapping[str, Tensor]) -> Tensor:
    """Sum of the squares of all weight matrices and filters."""
    return sum((w.square().sum() for w in parameters.values() if w.ndim >= 2), start=torch.zeros(()))


def gradient_norms(call: Call, x: Tensor, batch_size: int) -> Tensor:
    """Frobenius norm of the Jacobian of the outputs at each point."""
    return torch.cat([_jacobian_norms(call, batch) for batch in torch.split(x, batch_size)])


def _jacobian_norms(call: Call, x: Tensor) -> Tensor:
    # A copy, since the model may change in place what it is given.
    outputs, pull = torch.func.vjp(lambda points: call(points.clone()).flatten(1), x)  # type: ignore[misc]
    rows = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=x.device)[:, None].expand(-1, *outputs.shape)
    return _pulled(pull, rows).flatten(2).square().sum((0, 2)).sqrt()


def _pulled(pull: Callable[[Tensor], tuple[Tensor]], rows: Tensor) -> Tensor:
    """The gradient of every row, one after the other where an operation, as of oneDNN's LSTM, cannot be vectorised."""
    try:
        gradients: Tensor = torch.func.vmap(lambda row: pull(row)[0], chunk_size=20)(rows)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # if it is not the vectorisation, the next line raises it again
        gradients = torch.stack([pull(row)[0] for row in rows])
    return gradients


def finite_only(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
