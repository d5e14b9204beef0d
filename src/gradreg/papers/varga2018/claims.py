"""What the paper says of its tables and figures, as tests."""

from __future__ import annotations

from gradreg.papers.experiment import Claim

MNIST, CIFAR10, CIFAR100, TINY = "small MNIST", "small CIFAR-10", "small CIFAR-100", "TinyImageNet-200"
GRADIENT = ("SpectReg", "DoubleBack")
SIZES = ("500", "1000", "2000", "3000", "4000", "5000", "10000", "15000", "20000")
DECAYS = ("0", "0.0001", "0.0005", "0.001", "0.005", "0.01", "0.05", "0.1")
PLACES = ("at training points", "half way between", "at test points")
Place = tuple[str, str]


def is_better(text: str, better: Place, worse: Place) -> Claim:
    return Claim(text=text, better=better, worse=worse)


TABLE1 = (
    *(
        is_better(
            f"SpectReg improves on the baseline: {row}, {decay}", (row, f"SpectReg, {decay}"), (row, f"Baseline, {decay}")
        )
        for row in (MNIST, CIFAR10, CIFAR100)
        for decay in ("no weight decay", "weight decay")
    ),
    is_better(
        "on small MNIST gradient regularization yields more than weight decay",
        (MNIST, "SpectReg, no weight decay"),
        (MNIST, "Baseline, weight decay"),
    ),
    *(
        is_better(
            f"on {row} weight decay is more important than gradient regularization",
            (row, "Baseline, weight decay"),
            (row, "SpectReg, no weight decay"),
        )
        for row in (CIFAR10, CIFAR100)
    ),
)

TABLE2 = (
    *(
        is_better(f"{name} alone outperforms {row.lower()} alone", ("Baseline", name), (row, "NoGR"))
        for name in GRADIENT
        for row in ("Baseline", "Dropout", "Batchnorm")
    ),
    *(is_better(f"dropout adds to {name}", ("Dropout", name), ("Baseline", name)) for name in GRADIENT),
    is_better("with dropout DoubleBack is better than SpectReg", ("Dropout", "DoubleBack"), ("Dropout", "SpectReg")),
)

TABLE3 = (
    *(is_better(f"{name} improves on the baseline", ("No CP", name), ("No CP", "Baseline")) for name in GRADIENT),
    is_better("DoubleBack is better than SpectReg", ("No CP", "DoubleBack"), ("No CP", "SpectReg")),
    is_better("the confidence penalty improves on the baseline", ("CP", "Baseline"), ("No CP", "Baseline")),
    *(is_better(f"{name} is better than the confidence penalty", ("No CP", name), ("CP", "Baseline")) for name in GRADIENT),
    *(is_better(f"the confidence penalty adds to {name}", ("CP", name), ("No CP", name)) for name in GRADIENT),
    is_better("with the confidence penalty DoubleBack is better than SpectReg", ("CP", "DoubleBack"), ("CP", "SpectReg")),
)

TABLE4 = tuple(
    is_better(f"SpectReg dominates {other}: {row}", (row, "SpectReg"), (row, other))
    for row in (CIFAR10, CIFAR100)
    for other in ("Baseline", "DoubleBack", "CP")
)

TABLE5 = tuple(
    is_better(f"SpectReg improves on the baseline: {metric}", (TINY, f"SpectReg, {metric}"), (TINY, f"Baseline, {metric}"))
    for metric in ("top-1", "top-5")
)

#: The only significant difference of three, after Bonferroni's correction, is the first.
TABLE6 = tuple(
    Claim(text=text, better=(MNIST, better), worse=(MNIST, worse), equal=equal, comparisons=3)
    for text, better, worse, equal in (
        ("SpectReg is better than JacReg", "SpectReg", "JacReg", False),
        ("SpectReg and FrobReg do not differ", "SpectReg", "FrobReg", True),
        ("FrobReg and JacReg do not differ", "FrobReg", "JacReg", True),
    )
)

TABLE7 = (
    is_better("SpectReg 0.03 has a smaller error than the baseline", ("SIN", "0.03"), ("SIN", "0")),
    *(
        is_better(f"0.03 is the best weight, better than {weight}", ("SIN", "0.03"), ("SIN", weight))
        for weight in ("0.01", "0.1")
    ),
    *(
        is_better(f"too large a weight degrades the fit: {weight}", ("SIN", "0.03"), ("SIN", weight))
        for weight in ("1", "3", "10")
    ),
)

TRAIN_SIZE = (
    *(
        is_better(f"DoubleBack is better than {arm} at {size}", (size, "DoubleBack"), (size, arm))
        for size in SIZES
        for arm in ("Baseline", "SpectReg", "JacReg", "CP")
    ),
    *(
        is_better(f"SpectReg is better than the confidence penalty at {size}", (size, "SpectReg"), (size, "CP"))
        for size in SIZES[:3]
    ),
    *(is_better(f"SpectReg is better than JacReg at {size}", (size, "SpectReg"), (size, "JacReg")) for size in SIZES),
    *(
        is_better(f"{arm} keeps a benefit at 20000", ("20000", arm), ("20000", "Baseline"))
        for arm in ("SpectReg", "JacReg", "CP")
    ),
)


def of_weights(decay: str) -> str:
    """The row of the squared norm of the weights, below those of accuracies."""
    return f"{decay}: squared norm"


WEIGHT_NORM = (
    *(
        is_better(f"accuracy rises with DoubleBack up to 10, weight decay {decay}", (decay, "10"), (decay, "0"))
        for decay in DECAYS
    ),
    *(
        is_better(f"and collapses for large weights, weight decay {decay}", (decay, "10"), (decay, "1000"))
        for decay in DECAYS
    ),
    is_better("without weight decay DoubleBack makes the weights smaller", (of_weights("0"), "10"), (of_weights("0"), "0")),
    *(
        is_better(
            f"below the collapse DoubleBack makes the weights larger, weight decay {decay}",
            (of_weights(decay), "0"),
            (of_weights(decay), "10"),
        )
        for decay in DECAYS[1:]
    ),
    *(
        is_better(
            f"above it DoubleBack makes the weights smaller, weight decay {decay}",
            (of_weights(decay), "1000"),
            (of_weights(decay), "0"),
        )
        for decay in DECAYS[1:]
    ),
)


#: Weights at which the functions learned on SIN do not reach the data any more.
TOO_LARGE = ("0.3", "1", "3", "10")
SAWTOOTH = tuple(
    is_better(
        f"too large a weight gives no steps: {weight} is more than half as steep at training points as between them",
        (f"SpectReg {weight}", "half of that between"),
        (f"SpectReg {weight}", "at training points"),
    )
    for weight in TOO_LARGE
)


def beyond(controlled: str) -> tuple[Claim, ...]:
    """Control at the training points spreads."""
    return tuple(
        is_better(f"{controlled} makes gradients smaller {place}", (controlled, place), ("Baseline", place))
        for place in PLACES
    )
