"""The error of every engine's gradient on the CPU, against double backward in double precision.

``python benchmarks/errors.py`` measures and writes the CSV file; with ``--document`` it writes the tables of
docs/engines.md and their figure from that file instead.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines import Engine

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/gradient_errors_cpu.csv"
PAGE = ROOT / "docs/engines.md"
FIGURE = ROOT / "docs/images/engine_errors.png"

BATCH, CLASSES = 16, 10
DRAWS = 200
SPREAD_PRECISIONS = ["float64", "float32"]
ESTIMATES: dict[str, Engine] = {
    "double_backward": gr.DoubleBackward(),
    "forward by difference": gr.Forward(tangents="difference"),
    "forward": gr.Forward(),
}
STEPS = [None, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6]
#: tf32 is single precision whose products are rounded as a GPU's.
PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
PENALTIES = [gr.SpectReg(weight=1), gr.DoubleBack(weight=1), gr.JacReg(weight=1)]
EXACT: dict[str, Engine] = {"double_backward": gr.DoubleBackward(), "linearized": gr.Linearized(), "compiled": gr.Compiled()}
DIFFERENCES = {"finite_difference": False, "finite_difference central": True}


@dataclass(frozen=True)
class Row:
    """One number. ``measure`` says what ``error`` is: of a gradient, the spread of an estimate, or that of its mean."""

    model: str
    engine: str
    penalty: str
    precision: str
    step: str
    seed: int
    measure: str
    error: float
    torch: str = torch.__version__


@dataclass(frozen=True)
class Problem:
    """A model and a batch, both exact in single precision."""

    model: nn.Module
    x: Tensor
    y: Tensor

    def to(self, dtype: torch.dtype) -> Problem:
        """In that precision; the model is changed in place."""
        return Problem(self.model.to(dtype), self.x.to(dtype), self.y)


def lenet(generator: torch.Generator) -> nn.Module:
    return gr.models.lenet(dropout=0.0, generator=generator)


def tanh_mlp(generator: torch.Generator) -> nn.Module:
    widths = [784, 64, 64, CLASSES]
    layers = [nn.Linear(*pair) for pair in pairwise(widths)]
    model = nn.Sequential(nn.Flatten(), layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
    gr.models.initialise(model, generator)
    return model


MODELS: dict[str, Callable[[torch.Generator], nn.Module]] = {"lenet": lenet, "tanh mlp": tanh_mlp}


def problem(name: str, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[name](generator)
    x = torch.randn(BATCH, 1, 28, 28, generator=generator)
    return Problem(model, x, torch.randint(CLASSES, (BATCH,), generator=generator))


def without_loss(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of each example, for DoubleBack, and nothing for the batch: the total is the penalty alone."""
    values = F.cross_entropy(logits, y, reduction="none")
    return values if reduction == "none" else 0 * values.mean()


class TensorFloat32(TorchDispatchMode):
    """Takes products as a GPU does in TensorFloat-32: of operands of ten bits, summed in single precision."""

    PRODUCTS = (
        torch.ops.aten.mm,
        torch.ops.aten.bmm,
        torch.ops.aten.addmm,
        torch.ops.aten.convolution,
        torch.ops.aten.convolution_backward,
    )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in self.PRODUCTS:
            args = pytree.tree_map_only(Tensor, rounded_to_ten_bits, args)
        return func(*args, **kwargs or {})


def rounded_to_ten_bits(x: Tensor) -> Tensor:
    """The nearest numbers whose mantissa ends 13 bits before that of single precision."""
    if x.dtype != torch.float32:
        return x
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def gradient(p: Problem, penalty: gr.Penalty, engine: Engine, precision: str, draw: int = 0) -> Tensor:
    """By all parameters, as one vector in double precision."""
    half = precision == "bfloat16"
    p = p.to(torch.float32 if half else PRECISIONS[precision])
    with TensorFloat32() if precision == "tf32" else nullcontext():
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            objective = gr.Objective(without_loss, penalty, engine=engine)
            total = objective(p.model, p.x, p.y, generator=Draws.of_seed(draw)).total
        found = torch.autograd.grad(total, list(p.model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([g.double().flatten() for g in found])


def distance(found: Tensor, reference: Tensor) -> float:
    return float((found - reference).norm() / reference.norm())


def engines() -> Iterator[tuple[str, float | None, Engine]]:
    for name, engine in EXACT.items():
        yield name, None, engine
    for name, central in DIFFERENCES.items():
        for step in STEPS:
            yield name, step, gr.FiniteDifference(central=central, step=step)


def errors(name: str, seed: int) -> Iterator[Row]:
    p = problem(name, seed)
    for penalty in PENALTIES:
        reference = gradient(p, penalty, gr.DoubleBackward(), "float64")
        for precision in PRECISIONS:
            for engine_name, step, engine in engines():
                error = distance(gradient(p, penalty, engine, precision), reference)
                yield Row(name, engine_name, penalty.name, precision, _step(step), seed, "error", error)


def spreads(name: str) -> Iterator[Row]:
    """How far single draws lie from the mean of all, and that mean from what both estimate: FrobReg's gradient."""
    p, penalty = problem(name, 0), gr.SpectReg(weight=1)
    expected = gradient(p, gr.FrobReg(weight=1), gr.DoubleBackward(), "float64")
    for precision in SPREAD_PRECISIONS:
        for engine_name, engine in ESTIMATES.items():
            found = torch.stack([gradient(p, penalty, engine, precision, draw) for draw in range(DRAWS)])
            spread, mean = found.var(0).sum().sqrt() / expected.norm(), distance(found.mean(0), expected)
            for measure, value in {"spread": float(spread), "error of the mean": mean}.items():
                yield Row(name, engine_name, penalty.name, precision, "default", 0, measure, value)


def _step(step: float | None) -> str:
    return "default" if step is None else f"{step:g}"


def measure(seeds: int) -> None:
    rows: list[Row] = []
    for name in MODELS:
        rows += [row for seed in range(seeds) for row in errors(name, seed)]
        rows += spreads(name)
        print(f"{name}: done", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [field.name for field in fields(Row)]
        writer.writerow(names)
        for row in rows:
            values = [getattr(row, name) for name in names]
            writer.writerow([f"{value:.3e}" if isinstance(value, float) else value for value in values])


# ---- the page ----


def read() -> list[Row]:
    with RESULTS.open(newline="") as file:
        return [Row(**line | {"seed": int(line["seed"]), "error": float(line["error"])}) for line in csv.DictReader(file)]


def picked(rows: Iterable[Row], **wanted: str) -> list[float]:
    return [row.error for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


def cell(values: Sequence[float]) -> str:
    return f"{_short(median(values))} ({_short(max(values))})"


def _short(value: float) -> str:
    if value == 0 or value >= 10:
        return f"{value:.0f}"
    return f"{value:.2g}" if value >= 1e-3 else re.sub(r"e-0?", "e-", f"{value:.0e}")


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def tables(rows: Sequence[Row]) -> str:
    models, seeds = list(dict.fromkeys(row.model for row in rows)), {row.seed for row in rows}
    penalties = list(dict.fromkeys(f"`{row.penalty}`" for row in rows))
    found = [row for row in rows if row.measure == "error"]
    values = len(picked(found, model=models[0], engine="linearized", precision="float32"))
    each = f"each with {len(seeds)} draw{'s' * (len(seeds) > 1)} of weights and inputs"
    parts = [
        f"Median (largest) of {values} values: {', '.join(penalties)}, {each}. Batch {BATCH}, CPU, torch {rows[0].torch}."
    ]
    names = [*EXACT, *DIFFERENCES]
    for model in models:
        lines = [
            [f"`{n}`", *(cell(picked(found, model=model, engine=n, step="default", precision=p)) for p in PRECISIONS)]
            for n in names
        ]
        parts += [f"{model}, default step:", markdown(["engine", *PRECISIONS], lines)]
    for model in models:
        head = ["step", *(f"{p}, {side}" for p in PRECISIONS for side in ("one-sided", "central"))]
        lines = [
            [s, *(cell(picked(found, model=model, engine=n, step=s, precision=p)) for p in PRECISIONS for n in DIFFERENCES)]
            for s in map(_step, STEPS)
        ]
        parts += [f"{model}, `finite_difference` by step:", markdown(head, lines)]
    parts += [_spread_text(rows, models)]
    return "\n\n".join(parts)


def _spread_text(rows: Sequence[Row], models: Sequence[str]) -> str:
    lines, engines = [], list(dict.fromkeys(row.engine for row in rows if row.measure == "spread"))
    for model, precision, engine in product(models, SPREAD_PRECISIONS, engines):
        of = {"model": model, "engine": engine, "precision": precision}
        (spread,), (mean,) = (picked(rows, measure=measure, **of) for measure in ("spread", "error of the mean"))
        lines.append([model, precision, f"`{engine}`", _short(spread), _short(mean), _short(spread / math.sqrt(DRAWS))])
    head = ["model", "precision", "engine", "standard deviation", "error of the mean", "expected without bias"]
    return (
        "`forward` is an estimate, and so is `SpectReg` itself: both have the gradient of `FrobReg` in the mean. Over "
        f"{DRAWS} draws, relative to the norm of that gradient:\n\n" + markdown(head, lines)
    )


#: Colour and width by precision: wide below narrow, so that lines that coincide can be told apart.
LINES = [("#9ecae9", 5.0), ("#d1750b", 3.4), ("#b86bb0", 2.2), ("#2f5d2a", 1.2)]


def plot(rows: Sequence[Row]) -> None:
    models = list(dict.fromkeys(row.model for row in rows))
    figure, panels = plt.subplots(1, len(models), figsize=(9, 4.3), sharey=True, layout="constrained")
    steps = sorted(float(step) for step in {row.step for row in rows} if step != "default")
    for panel, model in zip(panels, models, strict=True):
        for (colour, width), precision in zip(LINES, PRECISIONS, strict=True):
            for engine, style in zip(DIFFERENCES, ("-", "--"), strict=True):
                of = {"model": model, "engine": engine, "precision": precision, "measure": "error"}
                side = "central" if DIFFERENCES[engine] else "one-sided"
                values = [median(picked(rows, step=f"{step:g}", **of)) for step in steps]
                panel.loglog(
                    steps, values, style, lw=width, marker="o", ms=width + 2, color=colour, label=f"{precision}, {side}"
                )
        panel.set(title=model, xlabel="step, relative to the input")
        panel.axhline(1, color="grey", lw=0.8)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("relative error of the gradient, median")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(FIGURE, dpi=100)


def document() -> None:
    rows = read()
    between = re.compile(r"(<!-- errors -->\n).*?(<!-- /errors -->)", re.DOTALL)
    text, count = between.subn(lambda m: f"{m[1]}\n{tables(rows)}\n\n{m[2]}", PAGE.read_text())
    if count != 1:
        raise ValueError(f"{PAGE.name} has {count} places between <!-- errors --> and <!-- /errors -->: it needs one.")
    PAGE.write_text(text)
    plot(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--document", action="store_true", help="write the page's tables and figure from the CSV file")
    parser.add_argument("--seeds", type=int, default=1, help="draws of weights and inputs to measure")
    given = parser.parse_args()
    document() if given.document else measure(given.seeds)


if __name__ == "__main__":
    main()
