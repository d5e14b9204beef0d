"""What users write themselves, by name: ``package.module:thing`` or ``file.py:thing``."""

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


def found(name: str) -> Any:
    """The function or class of that name, imported anew where it is in a file."""
    where, _, thing = name.rpartition(":")
    made: Any = _module(where)
    for part in thing.split("."):
        made = getattr(made, part, None)
    if made is None:
        raise ValueError(f"{where} has no function {thing!r}: give package.module:function or file.py:function.")
    return made


def fingerprint(name: str) -> str:
    """Hash of the file that it is written in, so that what is changed is another run.

    The files beside it that it imports count as part of it.
    """
    with neighbours(name) as beside:
        made, where = found(name), name.rpartition(":")[0]
    files = [where, *_files(beside)] if where.endswith(".py") else [_source(made) or _module(where).__file__]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files if file)).hexdigest()[:16]


def _source(made: Callable[..., Any]) -> str | None:
    """Where it is defined, which need not be where it was found; None for what only was made there, a partial or object."""
    try:
        return inspect.getsourcefile(made)
    except (TypeError, OSError):
        return None


def _files(modules: Iterable[str]) -> list[str]:
    return [file for name in sorted(modules) if (file := getattr(sys.modules[name], "__file__", None))]


def _module(where: str) -> ModuleType:
    if where.endswith(".py") and not Path(where).is_file():
        raise ValueError(f"there is no file {where!r}: check its path.")
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
def neighbours(name: str) -> Iterator[set[str]]:
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
