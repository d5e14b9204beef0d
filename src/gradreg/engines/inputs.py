"""The model's inputs: one tensor, several, or a dict of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

#: ``model(x)``, ``model(*xs)`` or ``model(**xs)``. Entries that are no tensors are passed on as they are.
Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments to call the model with."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if _is_several(inputs) else (inputs,)), {}


def map_tensors(function: Callable[[str, Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Replace each tensor, given its key or position (``""`` where there is only one)."""

    def apply(key: str, value: Any) -> Any:
        return function(key, value) if isinstance(value, Tensor) else value

    if isinstance(inputs, Mapping):
        return {key: apply(key, value) for key, value in inputs.items()}
    if _is_several(inputs):
        return tuple(apply(str(position), value) for position, value in enumerate(inputs))
    return function("", inputs) if isinstance(inputs, Tensor) else inputs


def _is_several(inputs: Inputs) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    return type(inputs) in (tuple, list)  # a named tuple, such as PackedSequence, is one argument


def named_tensors(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors by key or position."""
    found: dict[str, Tensor] = {}
    map_tensors(lambda key, tensor: found.setdefault(key, tensor), inputs)
    return found


def batch_size(inputs: Inputs) -> int:
    """Length of the first dimension of the first tensor that has one."""
    return next(tensor.shape[0] for tensor in named_tensors(inputs).values() if tensor.ndim)


def take(inputs: Inputs, rows: Tensor, size: int) -> Inputs:
    """The examples at these rows, of so many; tensors without the batch in dimension 0 stay whole."""
    return map_tensors(lambda _, t: t[rows.to(t.device)] if t.ndim and t.shape[0] == size else t, inputs)


def copied(inputs: Inputs) -> Inputs:
    """For a pass that may change them in place, when others are to come."""
    return map_tensors(lambda _, tensor: tensor.clone(), inputs)


def device_of(inputs: Inputs) -> torch.device:
    """Where the model computes: an accelerator, if any of the inputs lies there (lengths, for instance, stay on the CPU)."""
    devices = [tensor.device for tensor in named_tensors(inputs).values()]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def logits_of(output: Any) -> Tensor:
    """The logits in what the model returned: a tensor, or an object with ``logits`` such as Hugging Face's outputs."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returned {type(output).__name__}, expected a tensor or an object with .logits. "
            "Wrap the model so that it returns the logits alone."
        )
    return logits


def unwrapped(model: object) -> nn.Module | None:
    """The module whose names the user knows: without the wrapper of data parallelism. None for a plain function."""
    if not isinstance(model, nn.Module):
        return None
    return model.module if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)) else model
