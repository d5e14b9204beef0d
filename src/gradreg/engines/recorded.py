"""The forward pass as a function of the points to differentiate by: what every engine is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradreg.engines.forward_pass import Pass, call
from gradreg.engines.inputs import Inputs, device_of, logits_of
from gradreg.engines.taps import Points, check_points, is_input, noted, shifted, tapped
from gradreg.parts import begin_part
from gradreg.penalties.probe import VJP, split_rows

Model = Callable[..., Any]


def record(model: Model, inputs: Inputs, wrt: Collection[str], how: Pass) -> tuple[Tensor, Points]:
    """Run the pass for autograd: the logits, and the tensors to differentiate by, part of the recorded graph."""
    with tapped(model, inputs, wrt) as (fed, points):
        logits = logits_of(call(model, fed, how))
    check_points(points, len(logits))
    return logits, points


def logits_by_shift(model: Model, inputs: Inputs, wrt: str, how: Pass) -> Callable[..., Tensor]:
    """The logits as a function of how far each point is moved."""

    def function(*shifts: Tensor) -> Tensor:
        with shifted(model, inputs, wrt, shifts) as fed:
            return logits_of(call(model, fed, how))

    return function


def transform(model: Model, inputs: Inputs, wrt: str, how: Pass) -> tuple[Tensor, VJP, Sequence[Tensor]]:
    """Run the pass inside ``torch.func``: the logits, the differentiable ``c -> J^T c``, and the points.

    A transform may not see a buffer change in place: the pass runs on copies, and what it wrote becomes the model's
    buffers afterwards, unless the pass is the penalty's own.
    """
    points = points_of(model, inputs, wrt, how.again(model, device_of(inputs)))

    def function(*shifts: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with shifted(model, inputs, wrt, shifts) as fed:
            return _pure_call(model, fed, how)

    zeros = [torch.zeros_like(point) for point in points]
    logits, pull, buffers = torch.func.vjp(function, *zeros, has_aux=True)  # type: ignore[misc]
    begin_part()  # that of the penalties
    for name, buffer in buffers.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer)  # type: ignore[attr-defined]

    def vjp(cotangents: Tensor) -> Sequence[Tensor]:
        with torch.autocast(cotangents.device.type, enabled=False):  # it is for forward passes
            parts = [at_once(part) for part in split_rows(cotangents, points)]
        return [torch.cat(of_one_point) for of_one_point in zip(*parts, strict=True)] if len(parts) > 1 else parts[0]

    def at_once(cotangents: Tensor) -> list[Tensor]:
        if len(cotangents) == 1:
            return [gradient.unsqueeze(0) for gradient in pull(cotangents[0])]
        return list(torch.func.vmap(pull)(cotangents))

    return logits, vjp, points


def points_of(model: Model, inputs: Inputs, wrt: str, how: Pass) -> list[Tensor]:
    """The values to differentiate by; from a dry run, unless they are inputs."""
    with torch.no_grad(), noted(model, inputs, wrt) as (fed, points):
        if not is_input(wrt):
            logits = logits_of(call(model, fed, how))
            check_points({wrt: points}, len(logits))
    return points


def _pure_call(model: Model, inputs: Inputs, how: Pass) -> tuple[Tensor, dict[str, Tensor]]:
    if how.own or not isinstance(model, nn.Module):
        return logits_of(call(model, inputs, how)), {}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def on_copies(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, buffers, args, kwargs)

    return logits_of(call(on_copies, inputs, how)), buffers
