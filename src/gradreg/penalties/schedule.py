"""When, and how strongly, a penalty acts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up and lazy application of a penalty, as a factor on its weight.

    - ``warmup_steps=n``: the weight rises linearly from 0 at step 0 to its full value at step n. During the warm-up
      the expected total is that of the smaller weight; nothing is computed at step 0.
    - ``every=k``: the penalty is computed at steps 0, k, 2k, ... with k times its weight. Summed over k steps the
      expected penalty is the same as without, its variance from step to step is larger, and its cost is divided by k.

    A schedule needs the step: call ``objective(model, x, y, step=i)``.

    >>> Schedule(warmup_steps=10, every=2).factor(4)
    0.8
    >>> Schedule(warmup_steps=10, every=2).factor(5)
    0.0
    """

    warmup_steps: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise ValueError(f"warmup_steps={self.warmup_steps!r} must not be negative, and whole: 0 means no warm-up.")
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every={self.every!r} must be at least 1 and whole: 1 means at every step.")

    def factor(self, step: int | None) -> float:
        """What to multiply the weight by at this step."""
        if self == ALWAYS:
            return 1.0
        if step is None:
            raise ValueError(f"{self} needs to know the step: call objective(model, x, y, step=i) with i = 0, 1, 2, ...")
        if step < 0:
            raise ValueError(f"step={step} must not be negative: count from 0.")
        if step % self.every:
            return 0.0
        return self.every * min(1.0, step / self.warmup_steps if self.warmup_steps else 1.0)


ALWAYS = Schedule()
