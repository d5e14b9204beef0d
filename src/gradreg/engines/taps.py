"""``wrt``: catching, or shifting, the tensors to differentiate by on their way through the model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from gradreg.engines.base import DifferentiationError
from gradreg.engines.dropout import is_recomputed
from gradreg.engines.inputs import Inputs, copied, map_tensors, named_tensors, unwrapped

#: The caught tensors, by ``wrt``.
Points = dict[str, list[Tensor]]
#: What is put in the place of a tensor that is differentiated by.
Touch = Callable[[Tensor], Tensor]


@contextmanager
def tapped(model: Callable[..., Any], inputs: Inputs, wrt: Collection[str]) -> Iterator[tuple[Inputs, Points]]:
    """Give the inputs to call the model with, and a dict that the call fills with the tensors to differentiate by."""
    points: Points = {name: [] for name in wrt}
    with _touching(model, inputs, {name: partial(_tap, caught) for name, caught in points.items()}) as fed:
        yield fed, points


@contextmanager
def noted(model: Callable[..., Any], inputs: Inputs, wrt: str) -> Iterator[tuple[Inputs, list[Tensor]]]:
    """The same for one name, without a graph: the list is filled with the values alone."""
    caught: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        caught.append(tensor.detach())
        return tensor.clone()

    with _touching(model, inputs, {wrt: note}) as fed:
        yield fed, caught


@contextmanager
def shifted(model: Callable[..., Any], inputs: Inputs, wrt: str, shifts: Sequence[Tensor]) -> Iterator[Inputs]:
    """Give the inputs to call the model with, so that each tensor named by ``wrt`` is moved by its shift, in their order."""
    waiting = iter(shifts)

    def shift(tensor: Tensor) -> Tensor:
        if is_recomputed():
            raise DifferentiationError(
                f"wrt={wrt!r} lies in a part that torch.utils.checkpoint recomputes in the backward pass, and would not be "
                "moved there: name the checkpointed part itself or a module outside of it, or use engine='double_backward'."
            )
        return tensor + next(waiting)

    with _touching(model, inputs, {wrt: shift}) as fed:
        yield fed


@contextmanager
def _touching(model: Callable[..., Any], inputs: Inputs, touches: dict[str, Touch]) -> Iterator[Inputs]:
    inputs = copied(inputs)  # other passes on them are to come, and the model may change them in place
    with ExitStack() as hooks:
        for name, touch in touches.items():
            if is_input(name):
                inputs = _touch_inputs(model, inputs, name, touch)
            else:
                module = submodule(model, name)
                hooks.enter_context(module.register_forward_hook(_hook(name, touch)))
        yield inputs


def is_input(wrt: str) -> bool:
    return wrt == "input" or wrt.startswith("input.")


def submodule(model: Callable[..., Any], name: str) -> nn.Module:
    """The submodule of that name, or an error that names its neighbours."""
    root = unwrapped(model)
    names = [] if root is None else [n for n, _ in root.named_modules() if n]
    if root is None or name not in names:
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:5]
        raise ValueError(
            f"wrt={name!r} names no submodule of {type(root or model).__name__}. "
            f"Use 'input' or a name from model.named_modules(), for instance {', '.join(map(repr, close)) or 'none here'}."
        )
    return root.get_submodule(name)


def check_points(points: Points, batch: int) -> None:
    """Every name must have caught something, with the batch in its first dimension."""
    for name, tensors in points.items():
        if not tensors:
            raise ValueError(
                f"wrt={name!r}: the forward pass put out no floating-point tensor there. "
                "Name a module that the model calls in this pass and that returns activations."
            )
        for tensor in tensors:
            if tensor.shape[:1] != (batch,):
                raise ValueError(
                    f"wrt={name!r} has shape {tuple(tensor.shape)} while the output has batch size {batch}: "
                    "the batch must be dimension 0 of both. Name a module that keeps it first, set batch_first=True, or, "
                    "where one of several inputs has no batch, name another, wrt='input.<key or position>'."
                )


def _tap(caught: list[Tensor], tensor: Tensor) -> Tensor:
    # The model gets a clone, so that an in-place operation on it cannot change what we differentiate by.
    point = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
    caught.append(point)
    return point.clone()


def _touch_inputs(model: Callable[..., Any], inputs: Inputs, wrt: str, touch: Touch) -> Inputs:
    key = wrt.removeprefix("input").removeprefix(".")
    touched = []

    def replaced(name: str, tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() and key in ("", name)):
            return tensor
        touched.append(name)
        return touch(tensor)

    fed = map_tensors(replaced, inputs)
    if not touched:
        _raise_no_input(model, inputs, wrt, key)
    return fed


_CURES = {
    "torch.uint8": "Give the model numbers between 0 and 1: x.float() / 255.",
    "no tensor": "Make it one: torch.as_tensor(x).",
}


def _raise_no_input(model: Callable[..., Any], inputs: Inputs, wrt: str, key: str) -> None:
    tensors = named_tensors(inputs)
    if key and key not in tensors:
        named = isinstance(model, nn.Module) and wrt in dict(model.named_modules())
        hint = " (The submodule of that name cannot be named, since 'input' is taken: rename it.)" if named else ""
        raise ValueError(f"wrt={wrt!r} names no input. This model is given {', '.join(tensors) or 'one tensor'}.{hint}")
    found = ", ".join(sorted({str(tensor.dtype) for tensor in tensors.values()})) or "no tensor"
    if found in _CURES:
        raise TypeError(
            f"wrt={wrt!r}: the input is {found}, and only floating-point tensors have gradients. {_CURES[found]}"
        )
    root = unwrapped(model)
    embeddings = [n for n, m in root.named_modules() if isinstance(m, nn.Embedding)] if root is not None else []
    raise TypeError(
        f"wrt={wrt!r}: the input is {found}, and only floating-point tensors have gradients. "
        f"Differentiate by a module's output instead, wrt={(embeddings or ['<name of the embedding>'])[0]!r}."
    )


def _hook(name: str, touch: Touch) -> Callable[[nn.Module, Any, Any], Any]:
    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return touch(output) if output.is_floating_point() else output
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor) and type(output) is tuple:
            return (touch(output[0]), *output[1:])  # recurrent and attention layers: activations first, then state
        raise TypeError(
            f"wrt={name!r}: {type(module).__name__} returns {type(output).__name__}, expected a tensor or a tuple that "
            "begins with one. Name one of its submodules."
        )

    return hook
