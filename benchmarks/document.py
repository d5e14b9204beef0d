"""Write docs/benchmarks.md, its plot and the sentence of the README anew from benchmarks/results."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from pathlib import Path

from gradreg.bench.tables import plain_of, read, table
from gradreg.bench.timing import Row

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS, PAGE, PLOT = (
    ROOT / "benchmarks" / "results",
    ROOT / "docs" / "benchmarks.md",
    ROOT / "docs" / "images" / "benchmarks.png",
)
#: Files that hold rows of ``gradreg bench``, in the order of the page.
THEMES = (
    "resnet_bf16",
    "resnet_frob",
    "resnet_by_batch_size",
    "resnet18_",
    "lenet_tf32",
    "lenet_by_classes",
    "transformer_",
    "lenet_fleet_tf32",
    "lenet_fleet_bf16",
    "vmapped_resnet",
    "engines_",
    "fleet_",
)


def files() -> list[Path]:
    return [path for theme in THEMES for path in sorted(RESULTS.glob(f"{theme}*.csv"))]


def generated() -> str:
    """All tables."""
    tables = [f"### `{path.name}`\n\n{_about(path)}\n\n{table(read(path))}" for path in files()]
    return "\n\n".join([*tables, _cores(), _operations(), _rows(), _lanes(), _kernels(), _convolutions()])


def _about(path: Path) -> str:
    with path.open() as file:
        line = next(csv.DictReader(file))
    return f"gradreg {line['gradreg']} ({line['git'] or 'no revision'}), torch {line['torch']}, {line['finished']}."


def goals() -> str:
    """What was aimed at, and what was measured."""
    resnet = read(next(RESULTS.glob("resnet_bf16_*.csv")))
    fleet = {precision: read(next(RESULTS.glob(f"lenet_fleet_{precision}_*.csv"))) for precision in ("tf32", "bf16")}
    whole = read(next(RESULTS.glob("resnet_frob_bf16_*.csv")))
    frob = [row for row in whole if row.penalty.startswith("frob_reg")]
    fastest, leanest = min(frob, key=lambda row: row.ms), min(frob, key=lambda row: row.memory_mib)
    exact, lazy, double, forward = (
        _find(resnet, "compiled", "spect_reg"),
        _find(resnet, "compiled", "spect_reg every second step"),
        _find(resnet, "compiled", "double_back"),
        _find(resnet, "compiled forward by difference", "spect_reg"),
    )
    textbook = _find(resnet, "textbook", "spect_reg")
    lines = [
        "| one H200; CIFAR ResNet in bf16 where nothing else is said | aimed at | measured |",
        "|---|---|---|",
        f"| SpectReg, exact: step / plain compiled step | at most 2.3 | {_of_plain(exact, resnet)} |",
        f"| the same by the estimator `forward`, tangents by difference | at most 1.8 | {_of_plain(forward, resnet)} |",
        f"| the same, exact, in every second step | at most 1.8 | {_of_plain(lazy, resnet)} |",
        f"| exact, against the textbook's eager double backward | at least 6 x faster | {textbook.ms / exact.ms:.2f} x |",
        f"| DoubleBack, exact / plain | at most 2.3 | {_of_plain(double, resnet)} |",
        f"| FrobReg, exact, 10 classes / plain | at most 8 | {_of_plain(fastest, whole)} |",
        f"| the least memory of FrobReg / plain | at most 3 | {_memory(leanest, whole)} |",
        f"| memory of the exact SpectReg step / plain | at most 2.2 | {_memory(exact, resnet)} |",
        f"| memory of the exact DoubleBack step, the same passes / plain | at most 2.2 | {_memory(double, resnet)} |",
    ]
    for precision, rows in fleet.items():
        of_256 = next(row for row in rows if row.members == 256 and row.penalty)
        alone = _find(rows, "textbook", "spect_reg")
        lines.append(
            f"| LeNet fleet of 256, SpectReg, {precision}, against the textbook one at a time | at least 120 x | "
            f"{alone.ms / of_256.ms:.0f} x |"
        )
    return "\n".join([*lines, *_goals_of_the_cpu()])


def _goals_of_the_cpu() -> list[str]:
    goals = (
        ("LeNet, SpectReg by `double_backward` / plain", "at most 2.2", "engines", _lenet),
        ("fleets of 16 perceptrons, against the textbook's loop", "at least 3 x", "cores", _cores_of),
        ("`gradreg compare` as it comes", "below 60 s", "compare", _seconds),
    )
    return [f"| two CPU cores, {what} | {aim} | {_on_each_cpu(theme, figure)} |" for what, aim, theme, figure in goals]


def _on_each_cpu(theme: str, figure: Callable[[Path], str]) -> str:
    paths = sorted(RESULTS.glob(f"{theme}_fp32_cpu-*.csv"))
    return "; ".join(f"{figure(path)} ({_cpu(path)})" for path in paths)


def _cpu(path: Path) -> str:
    return path.name.partition("_cpu-")[2].partition("_torch-")[0]


def _lenet(path: Path) -> str:
    rows = read(path)
    ours, textbook = (_of_plain(_find(rows, method, "spect_reg"), rows) for method in ("double_backward", "textbook"))
    return f"{ours}, textbook {textbook}"


def _cores_of(path: Path) -> str:
    with path.open() as file:
        return f"{statistics.median(float(line['x faster']) for line in csv.DictReader(file)):.1f} x"


def _seconds(path: Path) -> str:
    with path.open() as file:
        return ", ".join(f"{float(line['seconds']):.0f}" for line in csv.DictReader(file)) + " s"


def speed() -> str:
    """The sentence of the README."""
    resnet = read(next(RESULTS.glob("resnet_bf16_*.csv")))
    fleet = read(next(RESULTS.glob("lenet_fleet_tf32_*.csv")))
    exact, textbook, alone = (
        _find(resnet, "compiled", "spect_reg"),
        _find(resnet, "textbook", "spect_reg"),
        _find(fleet, "textbook", "spect_reg"),
    )
    together = next(row for row in fleet if row.members == 256 and row.penalty)
    one = _find(read(next(RESULTS.glob("lenet_tf32_*.csv"))), "compiled", "spect_reg")
    return (
        f"On one H200 (torch 2.11) the exact SpectReg step of the paper's CIFAR ResNet takes {exact.ms:.1f} ms in bf16, "
        f"{_of_plain(exact, resnet)} times\na compiled plain step, and is {textbook.ms / exact.ms:.1f} times as fast as the "
        "textbook's eager double backward, which depends on the host.\n256 LeNets trained in one vectorised step (a fleet, "
        f"tf32) take {alone.ms / together.ms:.0f} times less than by that textbook one after the other,\nand "
        f"{one.ms / together.ms:.0f} times less than in compiled steps. Medians of five rounds of 20 steps."
    )


def _rows() -> str:
    path = next(RESULTS.glob("rows_fp32_*.csv"))
    with path.open() as file:
        lines = [
            f"| {one['model']} | {one['batch']} | {one['numbers']} | {one['one_by_one_ms']} | {one['ten_at_once_ms']} "
            f"| {one['textbook_ms']} | {float(one['ten_at_once_ms']) / float(one['one_by_one_ms']):.2f} |"
            for one in csv.DictReader(file)
        ]
    return "\n".join(
        [
            f"### `{path.name}`",
            "",
            "A step with FrobReg, ten classes: milliseconds, medians of five rounds in turns.",
            "",
            "| model | batch | numbers in the input | one by one | ten at once | textbook | ten at once / one by one |",
            "|---|---|---|---|---|---|---|",
            *lines,
        ]
    )


def _lanes() -> str:
    with next(RESULTS.glob("lanes_*.csv")).open() as file:
        lines = [f"| {line['runs']} | {line['ms_per_step_and_run']} |" for line in csv.DictReader(file)]
    return "\n".join(
        [
            "### Several runs of the CIFAR ResNet on one GPU, in lanes, with SpectReg",
            "",
            "| lanes | ms a step and run |",
            "|---|---|",
            *lines,
        ]
    )


def _cores() -> str:
    """Fleets on all cores against the textbook's loop."""
    lines = []
    for path in sorted(RESULTS.glob("cores_*.csv")):
        with path.open() as file:
            header, *own = csv.reader(file)
        lines += [[_cpu(path), *line] for line in own]
    header = ["CPU", *header]
    return "\n".join(
        [
            "### One fleet a core, as a study trains them, against the textbook's loop: perceptron of the digits, SpectReg",
            "",
            "Milliseconds a step and run, three tries.",
            "",
            f"| {' | '.join(header)} |",
            "|---" * len(header) + "|",
            *(f"| {' | '.join(line)} |" for line in lines),
        ]
    )


def _kernels() -> str:
    """Where the time of a compiled step goes, penalties side by side."""
    heading = "### Kernels of a compiled step of the CIFAR ResNet\n\nMilliseconds and number of kernels."
    return f"{heading}\n\n{_by_kind(next(RESULTS.glob('kernels_resnet_*.csv')), 'penalty', 'kernels')}"


def _operations() -> str:
    """Where the time of an eager step on a CPU goes, methods side by side."""
    path = next(RESULTS.glob("operations_lenet_*.csv"))
    heading = f"### Operations of an eager step of LeNet with SpectReg on two cores, `{path.name}`"
    text = "Milliseconds and number of calls, with the profiler's own time."
    return f"{heading}\n\n{text}\n\n{_by_kind(path, 'method', 'calls')}"


def _by_kind(path: Path, across: str, number: str) -> str:
    """A line for each kind, a column for each of what is compared: milliseconds and how many."""
    with path.open() as file:
        lines = list(csv.DictReader(file))
    columns, kinds = (list(dict.fromkeys(line[name] for line in lines)) for name in (across, "kind"))
    found = {(line["kind"], line[across]): f"{line['ms']} ms, {line[number]}" for line in lines}
    head = [f"| kind | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    return "\n".join(head + [f"| {kind} | {' | '.join(found[kind, column] for column in columns)} |" for kind in kinds])


def _convolutions() -> str:
    """The products of all layers, with kernels that cuDNN guessed and with those it found by trying."""
    with next(RESULTS.glob("convolutions_*.csv")).open() as file:
        lines = list(csv.DictReader(file))
    total: dict[tuple[str, str], float] = {}
    for line in lines:
        place = line["product"], line["kernel"]
        total[place] = total.get(place, 0.0) + int(line["layers"]) * float(line["us"]) / 1e3
    products, kernels = (list(dict.fromkeys(line[name] for line in lines)) for name in ("product", "kernel"))
    return "\n".join(
        [
            "### Convolutions of the CIFAR ResNet, by how cuDNN chooses its kernels",
            "",
            "Milliseconds for one product of each layer: output (the forward pass), gradient of the input, of the weight.",
            "",
            f"| product | {' | '.join(kernels)} |",
            "|---" * (1 + len(kernels)) + "|",
            *(f"| {one} | {' | '.join(f'{total[one, kernel]:.2f}' for kernel in kernels)} |" for one in products),
        ]
    )


def _find(rows: list[Row], method: str, penalty: str) -> Row:
    return next(row for row in rows if (row.method, row.penalty) == (method, penalty))


def _of_plain(row: Row, rows: list[Row]) -> str:
    plain = plain_of(row, rows)
    assert plain is not None
    return f"{row.ms / plain.ms:.2f}"


def _memory(row: Row, rows: list[Row]) -> str:
    plain = plain_of(row, rows)
    assert plain is not None
    return f"{row.memory_mib / plain.memory_mib:.2f}"


def draw() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = read(next(RESULTS.glob("resnet_bf16_*.csv")))
    names = [f"{row.method}{', ' + row.penalty if row.penalty else ''}" for row in rows]
    colours = ["#9aa5b1" if "plain" in row.method else "#d1495b" if row.method == "textbook" else "#2e6f95" for row in rows]
    figure, axes = plt.subplots(figsize=(8.2, 3.4), layout="constrained")
    bars = axes.barh(names, [row.ms for row in rows], color=colours)
    axes.bar_label(bars, [f"{row.ms:.1f}" for row in rows], padding=3)
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds a step", xlim=(0, 1.1 * max(row.ms for row in rows)))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, dpi=150)


def main() -> None:
    draw()
    _between(PAGE, "goals", goals())
    _between(PAGE, "generated", generated())
    _between(README, "speed", speed())


def _between(path: Path, marker: str, text: str) -> None:
    before, _, rest = path.read_text().partition(f"<!-- {marker} -->\n")
    after = rest.partition(f"<!-- /{marker} -->")[2]
    path.write_text(f"{before}<!-- {marker} -->\n{text}\n<!-- /{marker} -->{after}")


if __name__ == "__main__":
    main()
