"""A model by name, sized to the data, or the user's own."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Generator, nn

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
    with _neighbours(name):
        make = _function(name)
        taken = inspect.signature(make).parameters
        model = make(**{key: value for key, value in offered.items() if key in taken and value is not None})
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} returned {type(model).__name__}, expected a torch.nn.Module.")
    return model


def source_fingerprint(name: str) -> str:
    """Hash of the file that the user's own model is written in, so that a changed model is another run; empty for ours.

    The files beside it that it imports count as part of it.

    >>> source_fingerprint("lenet")
    ''
    """
    if ":" not in name:
        return ""
    with _neighbours(name) as neighbours:
        made, where = _function(name), name.rpartition(":")[0]
    files = [where, *_files(neighbours)] if where.endswith(".py") else [_source(made) or _module(where).__file__]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files if file)).hexdigest()[:16]


def _source(made: Callable[..., Any]) -> str | None:
    """Where it is defined, which need not be where it was found; None for what only was made there, a partial or object."""
    try:
        return inspect.getsourcefile(made)
    except (TypeError, OSError):
        return None


def _files(modules: Iterable[str]) -> list[str]:
    return [file for name in sorted(modules) if (file := getattr(sys.modules[name], "__file__", None))]


def _function(name: str) -> Callable[..., Any]:
    where, _, function = name.rpartition(":")
    made: Callable[..., Any] | None = getattr(_module(where), function, None)
    if isinstance(made, nn.Module):
        raise ValueError(f"{name} is one network, and every run needs one of its own: give a function that makes it.")
    if not callable(made):
        raise ValueError(f"{where} has no function {function!r}: give package.module:function or file.py:function.")
    return made


def _module(where: str) -> ModuleType:
    if where.endswith(".py") and not Path(where).is_file():
        raise ValueError(f"there is no file {where!r}: check the path of your model.")
    try:
        return _from_file(Path(where).resolve()) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:
        hint = f" (There is a file {where}.py here: write {where}.py:...)" if Path(f"{where}.py").is_file() else ""
        raise ValueError(f"{where} cannot be imported: {type(error).__name__}: {error}{hint}") from error


def _from_file(path: Path) -> ModuleType:
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"  # one that no other module has
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


#: Modules that were imported from beside a user's file.
_imported: set[str] = set()


@contextmanager
def _neighbours(name: str) -> Iterator[set[str]]:
    """Lets a file import the modules beside it, and tells which it did.

    Each time anew: another file may have others of the same names beside it.
    """
    path = Path(name.rpartition(":")[0]).resolve()
    if path.suffix != ".py":
        yield set()
        return
    while _imported:
        sys.modules.pop(_imported.pop(), None)
    known = set(sys.modules)
    sys.path.insert(0, str(path.parent))
    try:
        yield _imported
    finally:
        sys.path.remove(str(path.parent))
        new = set(sys.modules) - known
        beside = {top for top in map(_top, new) if top not in known and _is_beside(top, path)}
        _imported.update(module for module in new if _top(module) in beside)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_beside(module: str, path: Path) -> bool:
    """Whether a module or package is an entry of the file's folder, and not in a virtual environment further down."""
    found = sys.modules.get(module)
    place = next(iter(getattr(found, "__path__", ())), getattr(found, "__file__", None))
    return place is not None and Path(place).parent == path.parent and Path(place) != path
