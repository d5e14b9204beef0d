"""A function of a model as a module, so that ``functional_call`` can put tensors in the place of the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def call_with(
    model: nn.Module, tensors: Mapping[str, Tensor], function: Callable[..., Any], *args: Any
) -> tuple[Any, dict[str, Tensor]]:
    """``function(model, *args)`` with these parameters and buffers in the model; and its buffers afterwards.

    Buffers may be changed in place or replaced during the call: give copies.
    """
    named = {f"model.{name}": tensor for name, tensor in tensors.items()}
    result, buffers = torch.func.functional_call(_Around(model, function), named, args)
    return result, buffers


class _Around(nn.Module):
    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *args: Any) -> tuple[Any, dict[str, Tensor]]:
        return self.function(self.model, *args), dict(self.model.named_buffers())
