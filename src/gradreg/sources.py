"""Where the random numbers of an objective come from: a generator with a state, or draws by key."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Generator, Tensor

from gradreg.draws import Draws


class Source(Protocol):
    """Gives new random numbers in each call."""

    def normal(self, *shape: int, device: torch.device) -> Tensor: ...

    def integers(self, high: int, *shape: int, device: torch.device) -> Tensor: ...

    def permutation(self, size: int, device: torch.device) -> Tensor: ...

    def masks(self) -> int | Draws:
        """A seed, or draws, for the dropout masks of one forward pass."""
        ...

    def of(self, purpose: str) -> Source:
        """The source for this purpose: where it can be, independent of how much the others draw."""
        ...


class GeneratorSource:
    """A PyTorch generator, or the global one.

    Args:
        generator: None means PyTorch's global generator.
        forked: with no generator, make one from a single draw of the global one, and only when it is needed.
    """

    def __init__(self, generator: Generator | None = None, *, forked: bool = False) -> None:
        self._given = generator
        self._forked = forked

    @cached_property
    def generator(self) -> Generator | None:
        return Generator().manual_seed(seed_of(None)) if self._given is None and self._forked else self._given

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self._home(device)).to(device)

    def integers(self, high: int, *shape: int, device: torch.device) -> Tensor:
        return torch.randint(high, shape, generator=self.generator, device=self._home(device)).to(device)

    def permutation(self, size: int, device: torch.device) -> Tensor:
        return torch.randperm(size, generator=self.generator, device=self._home(device)).to(device)

    def masks(self) -> int:
        return seed_of(self.generator)

    def of(self, purpose: str) -> GeneratorSource:  # noqa: ARG002
        return self

    def _home(self, device: torch.device) -> torch.device:
        return device if self.generator is None else self.generator.device


class KeyedSource:
    """Draws by key, at the number of each call."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._calls = 0

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        return self._next().normal(*shape, device=device)

    def integers(self, high: int, *shape: int, device: torch.device) -> Tensor:
        return self._next().integers(high, *shape, device=device)

    def permutation(self, size: int, device: torch.device) -> Tensor:
        return self._next().permutation(size, device=device)

    def masks(self) -> Draws:
        return self._next()

    def of(self, purpose: str) -> KeyedSource:
        return KeyedSource(self._draws.at(purpose))

    def _next(self) -> Draws:
        self._calls += 1
        return self._draws.at(self._calls)


def seed_of(generator: Generator | None) -> int:
    """A single draw, to seed others by."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device))
