"""Packages that only some datasets need, imported when they do."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gradreg.data.errors import DataError


def require(module: str, extra: str) -> Any:
    """Import a module, or say which extra brings it.

    >>> require("json", "cli").loads("[1]")
    [1]
    """
    check_installed(module, extra)
    return import_module(module)


def check_installed(module: str, extra: str) -> None:
    """Raise unless the module's package is there."""
    package = module.partition(".")[0]
    if not is_installed(package):
        raise DataError(
            f"This needs the package {package}, which is not installed: run pip install 'gradreg[{extra}]', and try again."
        )


def is_installed(package: str) -> bool:
    """Whether a top-level package could be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except ValueError:  # put into sys.modules by hand, without a spec
        return True
