"""A model by name, sized to the data, or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import Generator, nn

from gradreg import own_code
from gradreg.models.lenet import lenet
from gradreg.models.mlp import mlp
from gradreg.models.resnet import resnet
from gradreg.models.resnet18 import resnet18

MODELS = ("lenet", "lenet_bn", "lenet_wide", "resnet", "resnet18", "mlp")
#: How much wider than LeNet the wide one is.
WIDE = 4


def build(
    name: str,
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    dropout: float | None = None,
    generator: Generator | None = None,
) -> nn.Module:
    """The model for inputs of this shape.

    Args:
        name: ``lenet``, ``lenet_bn`` (batch norm in the place of dropout), ``lenet_wide`` (four times the filters and
            units), ``resnet``, ``resnet18``, ``mlp``; or ``package.module:function`` or ``file.py:function``, for a function
            or class that makes a module. It is given those of ``input_shape``, ``num_outputs``, ``dropout`` and
            ``generator`` that it takes.
        input_shape: ``(channels, height, width)`` or ``(features,)``.
        num_outputs: classes, or numbers to predict.
        dropout: rate of dropout; None for the model's default.
        generator: draws the initial weights.

    >>> build("mlp", (1,), 1)[1]
    Linear(in_features=1, out_features=64, bias=True)
    """
    if ":" in name:
        return _own(name, input_shape, num_outputs, dropout, generator)
    if name not in MODELS:
        raise ValueError(f"model {name!r} is unknown: choose {', '.join(MODELS)}, or package.module:function.")
    if name == "mlp":
        return _mlp(input_shape, num_outputs, dropout or 0.0, generator)
    if len(input_shape) != 3:
        raise ValueError(f"{name} takes images, and an example here has shape {input_shape}: use mlp.")
    channels, height, width = input_shape
    if name.startswith("lenet"):
        return lenet(
            num_outputs,
            channels,
            image_size=(height, width),
            dropout=0.5 if dropout is None else dropout,
            batch_norm=name == "lenet_bn",
            width=WIDE if name == "lenet_wide" else 1,
            generator=generator,
        )
    return (resnet if name == "resnet" else resnet18)(num_outputs, channels, generator=generator)


def _mlp(input_shape: tuple[int, ...], num_outputs: int, dropout: float, generator: Generator | None) -> nn.Module:
    features = 1
    for side in input_shape:
        features *= side
    hidden = (64,) * 5 if features == num_outputs == 1 else (128, 128)  # the paper's SIN network, or a common default
    return mlp(features, num_outputs, hidden=hidden, dropout=dropout, generator=generator)


def _own(
    name: str, input_shape: tuple[int, ...], num_outputs: int, dropout: float | None, generator: Generator | None
) -> nn.Module:
    offered = {"input_shape": input_shape, "num_outputs": num_outputs, "dropout": dropout, "generator": generator}
    with own_code.neighbours(name):
        make = _function(name)
        taken = inspect.signature(make).parameters
        model = make(**{key: value for key, value in offered.items() if key in taken and value is not None})
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} returned {type(model).__name__}, expected a torch.nn.Module.")
    return model


def _function(name: str) -> Callable[..., nn.Module]:
    made: Callable[..., nn.Module] = own_code.found(name)
    if isinstance(made, nn.Module):
        raise ValueError(f"{name} is one network, and every run needs one of its own: give a function that makes it.")
    if not callable(made):
        raise ValueError(f"{name} is no function: give package.module:function or file.py:function.")
    return made


def source_fingerprint(name: str) -> str:
    """Hash of what the user's own model is written in, so that a changed model is another run; empty for ours.

    >>> source_fingerprint("lenet")
    ''
    """
    return own_code.fingerprint(name) if ":" in name else ""
