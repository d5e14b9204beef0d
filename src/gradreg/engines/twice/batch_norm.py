"""Batch norm whose first and second derivatives are written out: two passes over the data each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradreg.engines import normalisation
from gradreg.engines.normalisation import all_but_channels, batch_statistics, by_channel, wide


def batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm``, differentiated through the statistics of the batch."""
    if not (training or running_mean is None):
        return normalisation.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    with torch.no_grad():
        x = wide(input.detach())
        var, mean = batch_statistics(x, running_mean, running_var, momentum)
        scale = (var + eps).rsqrt()
    gain = torch.ones_like(mean) if weight is None else by_channel(weight, x)
    y: Tensor = Normalised.apply(input, gain, mean, scale)  # type: ignore[no-untyped-call]
    return y if bias is None else y + by_channel(bias, y).to(y.dtype)


class Normalised(Function):
    r""":math:`y = \gamma \hat x` with :math:`\hat x = (x - \mu) / \sigma`, where :math:`\mu, \sigma` are those of x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gain: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        return ((wide(x) - mean) * (scale * gain)).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, along, _ = NormalisedBackward.apply(dy, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return dx, along * _count(dy), None, None


class NormalisedBackward(Function):
    r"""The first derivative, :math:`dx = \tfrac{\gamma}{\sigma} P dy` with the projection
    :math:`P v = v - \overline{v} - \hat x\, \overline{v \hat x}`; beside it :math:`\overline{dy\, \hat x}`, from which
    :math:`d\gamma` is, and :math:`\overline{dy}`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(dy: Tensor, x: Tensor, gain: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dy_, x_hat = wide(dy), (wide(x) - mean) * scale
        along, dy_mean = _mean(dy_ * x_hat), _mean(dy_)
        dx = (dy_ - dy_mean - x_hat * along) * (scale * gain)
        return dx.to(x.dtype), along, dy_mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, v: Tensor, v_of_along: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        r"""With the symmetric P and :math:`a = \overline{v\, P dy}`:

        :math:`\partial x = -\gamma \sigma^{-2} (a \hat x + \overline{dy\, \hat x}\, P v + \overline{v \hat x}\, P dy)`.
        """
        dy, x, gain, mean, scale, dy_along, dy_mean = ctx.saved_tensors
        v_, dy_, x_hat = wide(v), wide(dy), (wide(x) - mean) * scale
        v_along, v_mean = _mean(v_ * x_hat), _mean(v_)
        pv, pdy = v_ - v_mean - x_hat * v_along, dy_ - dy_mean - x_hat * dy_along
        a = _mean(v_ * dy_) - v_mean * dy_mean - v_along * dy_along
        more = v_of_along / _count(x)
        ddy = gain * scale * pv + more * x_hat
        dx = -(gain * scale * scale) * (a * x_hat + dy_along * pv + v_along * pdy) + more * scale * pdy
        return ddy.to(dy.dtype), dx.to(x.dtype), scale * a * _count(x), None, None


def _count(x: Tensor) -> int:
    """Numbers of one channel."""
    return x.numel() // x.shape[1]


def _mean(t: Tensor) -> Tensor:
    return t.mean(all_but_channels(t), keepdim=True)
