"""How the penalties are differentiated. One file an engine."""

from dataclasses import replace

from gradreg.engines.auto import Auto, Choice, choose
from gradreg.engines.base import DifferentiationError, Engine, Evaluation
from gradreg.engines.compiled import Compiled
from gradreg.engines.double_backward import DoubleBackward
from gradreg.engines.finite_difference import FiniteDifference
from gradreg.engines.forward import Forward
from gradreg.engines.linearized import Linearized

ENGINES: dict[str, type[Engine]] = {
    kind.name: kind for kind in (Auto, DoubleBackward, Compiled, Linearized, FiniteDifference, Forward)
}


def engine_of(engine: str | Engine) -> Engine:
    """The engine of that name, or the engine itself."""
    if isinstance(engine, type):
        raise TypeError(f"engine={engine.__name__} is a class: pass an instance, {engine.__name__}().")
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r} is unknown: choose one of {', '.join(map(repr, ENGINES))}.")
    return ENGINES[engine]()


def inside_transforms(engine: Engine) -> Engine:
    """The engine for use inside transforms of ``torch.func``, such as the vectorised step of a fleet."""
    if isinstance(engine, Compiled):
        return inside_transforms(engine.inner)
    if isinstance(engine, Auto):
        return DoubleBackward(transformed=True)
    return replace(engine, transformed=True) if hasattr(engine, "transformed") else engine  # type: ignore[type-var]


__all__ = [
    "ENGINES",
    "Auto",
    "Choice",
    "Compiled",
    "DifferentiationError",
    "DoubleBackward",
    "Engine",
    "Evaluation",
    "FiniteDifference",
    "Forward",
    "Linearized",
    "choose",
    "engine_of",
    "inside_transforms",
]
