"""Random numbers as a function of a key: no state to keep, to restore or to share."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

_ODD, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFT = 0xD1B54A32D192ED03  # so that part 0 of key 0 is no fixed point
_ALL = 2**64 - 1
_BELOW_1 = 1 - 2**-24  # where adding a half would round to 1


@dataclass(frozen=True)
class Draws:
    """A source of random numbers that depend on its key and on the place in what is drawn, and on nothing else.

    The same key gives the same numbers alone, as a member of a fleet, on every device, compiled or not, and in whatever
    order they are asked for. The generator is splitmix64 with the place as its counter, in tensor operations throughout.

    Attributes:
        key: an integer, or an integer tensor of no dimensions (under ``torch.func.vmap`` one for each member).

    >>> draws = Draws.of_seed(0).at("dropout", 7)
    >>> bool((draws.uniform(3) == draws.uniform(3)).all()), bool((draws.uniform(3) == draws.at(1).uniform(3)).any())
    (True, False)
    """

    key: int | Tensor

    @classmethod
    def of_seed(cls, seed: int) -> Draws:
        return cls(_mixed(seed))

    def at(self, *path: str | int | Tensor) -> Draws:
        """An independent source for this purpose, step or number."""
        key = self.key
        for part in path:
            key = _mixed(_sum(_sum(key, _SHIFT), _number(part)))
        return Draws(key)

    def bits(self, *shape: int, device: torch.device | str | None = None) -> Tensor:
        """Integers of 64 random bits."""
        place = torch.arange(1, math.prod(shape) + 1, device=device).reshape(shape)
        key = _signed(self.key) if isinstance(self.key, int) else self.key
        return _mixed((place + key) * _signed(_ODD))

    def uniform(self, *shape: int, device: torch.device | str | None = None) -> Tensor:
        """Single-precision numbers strictly between 0 and 1."""
        return _unit(self.bits(*shape, device=device), 40)

    def normal(self, *shape: int, device: torch.device | str | None = None) -> Tensor:
        """Single-precision standard normal numbers, by the method of Box and Muller."""
        bits = self.bits(*shape, device=device)
        return (-2 * _unit(bits, 40).log()).sqrt() * (2 * math.pi * _unit(bits, 16)).cos()

    def integers(self, high: int, *shape: int, device: torch.device | str | None = None) -> Tensor:
        """Integers from 0 to ``high - 1``."""
        return (self.bits(*shape, device=device) >> 33 & 0x7FFFFFFF) * high >> 31

    def permutation(self, size: int, device: torch.device | str | None = None) -> Tensor:
        """The integers from 0 to ``size - 1`` in random order."""
        return self.bits(size, device=device).argsort()


def _unit(bits: Tensor, drop: int) -> Tensor:
    """24 of the bits as a number between 0 and 1, both excluded."""
    return (((bits >> drop & 0xFFFFFF).float() + 0.5) / 2**24).clamp(max=_BELOW_1)


def _number(part: str | int | Tensor) -> int | Tensor:
    if isinstance(part, str):
        return int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little")
    return part * _signed(_ODD) if isinstance(part, Tensor) else _signed(part * _ODD)


@overload
def _mixed(x: Tensor) -> Tensor: ...
@overload
def _mixed(x: int) -> int: ...
@overload
def _mixed(x: int | Tensor) -> int | Tensor: ...
def _mixed(x: int | Tensor) -> int | Tensor:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = _times(x ^ _shifted(x, 30), _FIRST)
    x = _times(x ^ _shifted(x, 27), _SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: int | Tensor, by: int) -> int | Tensor:
    """To the right, filled with zeros: PyTorch's integers are signed, and its shift repeats the sign."""
    return x >> by & ((1 << 64 - by) - 1) if isinstance(x, Tensor) else (x & _ALL) >> by


def _times(x: int | Tensor, factor: int) -> int | Tensor:
    return x * _signed(factor) if isinstance(x, Tensor) else _signed((x & _ALL) * factor)


def _sum(x: int | Tensor, y: int | Tensor) -> int | Tensor:
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return (_signed(x) if isinstance(x, int) else x) + (_signed(y) if isinstance(y, int) else y)
    return _signed(x + y)


def _signed(x: int) -> int:
    """The same 64 bits as a signed integer, which is what PyTorch has; it wraps around as they do."""
    x &= _ALL
    return x - 2**64 if x >= 2**63 else x
