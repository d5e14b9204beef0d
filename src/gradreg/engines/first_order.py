"""What the engines share that differentiate no gradient: a plain ``J^T c``, and a differentiable ``J t``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from gradreg.engines.agreement import check_agrees
from gradreg.engines.attention import math_attention
from gradreg.engines.base import Evaluation
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs, device_of
from gradreg.engines.recorded import Model, logits_by_shift, record, transform
from gradreg.engines.tangents import Function
from gradreg.engines.tried import Trial
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
    in_forward_mode: bool,
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
        trial = Trial(f"run twice, {in_forward_mode=}", model)
        for name in trial.untried(wrt):
            check_agrees(model, shifted(name), points[name], logits, in_forward_mode=in_forward_mode)
            trial.passed(name)
        vjps = {name: autograd_vjp(logits, points[name], differentiable=False) for name in wrt}
        return Evaluation(logits, vjps, {name: jvp(name, points[name], logits) for name in wrt})
    with _attention(transformed):
        passes = {name: transform(model, inputs, name, again if number else how) for number, name in enumerate(wrt)}
    logits = next(iter(passes.values()))[0]
    vjps = {name: vjp for name, (_, vjp, _) in passes.items()}
    return Evaluation(logits, vjps, {name: jvp(name, points, logits) for name, (_, _, points) in passes.items()})


def _attention(transformed: bool) -> AbstractContextManager[object]:
    return math_attention() if transformed else nullcontext()  # fused attention cannot be vectorised
