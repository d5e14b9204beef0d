"""What is measured of a trained model."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradreg.functional import frob_reg, weight_decay


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, batch_size: int) -> Tensor:
    """The model's outputs in evaluation mode, batch by batch, in single precision."""
    was_training = model.training
    model.eval()
    outputs = torch.cat([model(batch).float() for batch in torch.split(x, _evaluation_batch(model, batch_size))])
    model.train(was_training)
    return outputs


def _evaluation_batch(model: nn.Module, batch_size: int) -> int:
    """Large, unless batch norm takes its statistics from the batch at test time too: then as in training."""
    uses_batch = any(getattr(m, "track_running_stats", True) is False for m in model.modules())
    return batch_size if uses_batch else max(batch_size, 1000)


def classification_metrics(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, top-5 accuracy where there are more classes, and cross-entropy. What is not a number is wrong."""
    finite = logits.isfinite().all(1)
    correct = (logits.argmax(1) == y) & finite
    metrics = {"accuracy": correct.float().mean().item()}
    if logits.shape[1] > 5:
        top5 = (logits.topk(5, dim=1).indices == y[:, None]).any(1) & finite
        metrics["top5"] = top5.float().mean().item()
    return _finite_only(metrics | {"loss": F.cross_entropy(logits, y).item()})


def regression_metrics(prediction: Tensor, y: Tensor) -> dict[str, float]:
    """Mean squared error, in the unit of the targets."""
    return _finite_only({"mse": F.mse_loss(prediction, y).item()})


def squared_weight_norm(model: nn.Module) -> float:
    """Sum of the squares of all weight matrices and filters."""
    return 2 * weight_decay(model.parameters()).item()


def gradient_norms(model: nn.Module, x: Tensor, batch_size: int) -> list[float]:
    """Frobenius norm of the Jacobian of the outputs at each point, in evaluation mode."""
    was_training = model.training
    model.eval()
    norms: list[float] = []
    for batch in torch.split(x, batch_size):
        points = batch.detach().requires_grad_()
        norms += frob_reg(model(points), points, norm="l2", chunk_size=20).tolist()
    model.train(was_training)
    return [norm for norm in norms if math.isfinite(norm)]


def _finite_only(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
