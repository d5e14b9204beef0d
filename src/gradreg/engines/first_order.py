"""What the engines share that differentiate no gradient: a plain ``J^T c``, and a differentiable ``J t``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from gradreg.engines.attention import math_attention
from gradreg.engines.base import Evaluation
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs, device_of
from gradreg.engines.recorded import Model, logits_by_shift, record, transform
from gradreg.engines.tangents import Function, check_agrees
from gradreg.engines.tried import tried_on, way_of
from gradreg.penalties.probe import JVP, autograd_vjp

#: From the logits as a function of shifts, the points and the logits there, to the product with the Jacobian.
JVPMaker = Callable[[Function, Sequence[Tensor], Tensor], JVP]


def evaluate(
    model: Model,
    inputs: Inputs,
    wrt: Collection[str],
    how: Pass,
    make_jvp: JVPMaker,
    *,
    forward_mode: bool,
    transformed: bool = False,
) -> Evaluation:
    """One pass, and for each name the plain gradient there and the product that is to be differentiated."""
    again = how.again(model, device_of(inputs))

    def shifted(name: str) -> Function:
        def function(*shifts: Tensor) -> Tensor:
            with _attention(transformed):
                return logits_by_shift(model, inputs, name, again)(*shifts)

        return function

    def jvp(name: str, points: Sequence[Tensor], logits: Tensor) -> JVP:
        return make_jvp(shifted(name), [point.detach() for point in points], logits)

    if not transformed:
        logits, points = record(model, inputs, wrt, how)
        tried, way = tried_on(getattr(model, "__code__", model)), way_of(model)  # a lambda is a new object in each step
        for name in wrt:
            if (forward_mode, name, way) not in tried:
                inside = coarsest_precision(model, logits, *points[name])
                check_agrees(shifted(name), points[name], logits, inside, forward_mode=forward_mode)
                tried.add((forward_mode, name, way))
        vjps = {name: autograd_vjp(logits, points[name], differentiable=False) for name in wrt}
        return Evaluation(logits, vjps, {name: jvp(name, points[name], logits) for name in wrt})
    with _attention(transformed):
        passes = {name: transform(model, inputs, name, again if number else how) for number, name in enumerate(wrt)}
    logits = next(iter(passes.values()))[0]
    vjps = {name: vjp for name, (_, vjp, _) in passes.items()}
    return Evaluation(logits, vjps, {name: jvp(name, points, logits) for name, (_, _, points) in passes.items()})


def coarsest_precision(model: Model, *tensors: Tensor) -> torch.dtype:
    """Of what the model computes with: these tensors, its parameters, autocast."""
    dtypes = {tensor.dtype for tensor in tensors}
    if isinstance(model, nn.Module):
        dtypes |= {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _attention(transformed: bool) -> AbstractContextManager[object]:
    return math_attention() if transformed else nullcontext()  # fused attention cannot be vectorised
