"""Batch norm whose first and second derivatives are written out: two passes over the data each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradreg.engines import normalisation
from gradreg.engines.normalisation import batch_statistics, by_channel
from gradreg.penalties.norm import wide


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
        dx, along, _ = NormalisedBackward.apply(dy, *ctx.saved_tensors, dy.ndim)  # type: ignore[no-untyped-call]
        return dx, along * _count(dy, dy.ndim), None, None


class NormalisedBackward(Function):
    r"""The first derivative, :math:`dx = \tfrac{\gamma}{\sigma} P dy` with the projection
    :math:`P v = v - \overline{v} - \hat x\, \overline{v \hat x}`; beside it :math:`\overline{dy\, \hat x}`, from which
    :math:`d\gamma` is, and :math:`\overline{dy}`.

    ``ndim`` is the number of dimensions of x, batch and channels first. Whatever stands before them, such as rows of a
    Jacobian, broadcasts: what is vectorised is only moved there.
    """

    @staticmethod
    def forward(
        dy: Tensor, x: Tensor, gain: Tensor, mean: Tensor, scale: Tensor, ndim: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        dy_, x_hat = wide(dy), (wide(x) - mean) * scale
        along, dy_mean = _mean(dy_ * x_hat, ndim), _mean(dy_, ndim)
        dx = (dy_ - dy_mean - x_hat * along) * (scale * gain)
        return dx.to(x.dtype), along, dy_mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, ctx.ndim = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, v: Tensor, v_of_along: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        r"""With the symmetric P and :math:`a = \overline{v\, P dy}`:

        :math:`\partial x = -\gamma \sigma^{-2} (a \hat x + \overline{dy\, \hat x}\, P v + \overline{v \hat x}\, P dy)`,

        written as a sum of multiples of v, dy, x̂ and 1, of which only the first two are summed over rows: a compiler
        that is given P v and P dy keeps both for every row, in single precision.
        """
        dy, x, gain, mean, scale, dy_along, dy_mean = ctx.saved_tensors
        v_, dy_, x_hat, count = wide(v), wide(dy), (wide(x) - mean) * scale, _count(x, ctx.ndim)
        v_along, v_mean = _mean(v_ * x_hat, ctx.ndim), _mean(v_, ctx.ndim)
        a = _mean(v_ * dy_, ctx.ndim) - v_mean * dy_mean - v_along * dy_along
        slope, more = gain * scale, v_of_along / count
        ddy = slope * v_ + (more - slope * v_along) * x_hat - slope * v_mean
        of_v, of_dy = -slope * scale * dy_along, (more - slope * v_along) * scale
        of_x, of_one = slope * scale * a + of_v * v_along + of_dy * dy_along, of_v * v_mean + of_dy * dy_mean
        of_all = _summed(of_v * v_ + of_dy * dy_, x)
        dx = -_summed(of_x, mean) * x_hat - _summed(of_one, mean) + of_all  # laid out as x is: a sum is not
        return ddy.to(dy.dtype), dx.to(x.dtype), _summed(scale * a * count, gain), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, tuple[int, ...]]:
        *tensors, ndim = inputs
        most = 1 + max(tensor.ndim - (dim is not None) for tensor, dim in zip(tensors, in_dims, strict=False))
        if in_dims[0] is None:
            tensors[0], in_dims = tensors[0].expand(info.batch_size, *tensors[0].shape), (0, *in_dims[1:])
        moved = [t if dim is None else _in_front(t, dim, most) for t, dim in zip(tensors, in_dims, strict=False)]
        return NormalisedBackward.apply(*moved, ndim), (0, 0, 0)  # type: ignore[no-untyped-call]


def _in_front(tensor: Tensor, dim: int, ndim: int) -> Tensor:
    """This dimension moved before all that any tensor has."""
    first = tensor.movedim(dim, 0)
    return first[(slice(None), *[None] * (ndim - tensor.ndim))]


def _summed(tensor: Tensor, like: Tensor) -> Tensor:
    """Over what the other broadcasts over."""
    return tensor.sum_to_size(like.shape)


def _count(x: Tensor, ndim: int) -> int:
    """Numbers of one channel."""
    sizes = x.shape[-ndim:]
    return sizes.numel() // sizes[1]


def _mean(t: Tensor, ndim: int) -> Tensor:
    return t.mean([dim for dim in range(-ndim, 0) if dim != 1 - ndim], keepdim=True)
