"""The paper's figures, and the experiments of its text, as tables of what they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradreg.papers.experiment import ACCURACY, Cell, Experiment, Metric, Published
from gradreg.papers.varga2018 import claims, deviations
from gradreg.papers.varga2018.protocols import Protocol
from gradreg.papers.varga2018.tables import CIFAR_DECAY, MNIST_DECAY, SIN_ERROR, SIN_MSE, sin_penalties
from gradreg.penalties import Penalty
from gradreg.training import RunConfig

#: The appendix's weights of DoubleBack, SpectReg, JacReg and the confidence penalty, by size of the training set.
WEIGHTS = {
    500: (50.0, 0.03, 0.3, 0.01),
    1000: (50.0, 0.03, 0.03, 0.01),
    2000: (50.0, 0.03, 1.0, 0.01),
    3000: (20.0, 0.03, 1.0, 0.01),
    4000: (20.0, 0.03, 1.0, 0.01),
    5000: (20.0, 0.003, 1.0, 0.1),
    10_000: (5.0, 0.01, 1.0, 0.1),
    15_000: (2.0, 0.01, 1.0, 0.01),
    20_000: (2.0, 0.001, 0.3, 0.03),
}
DOUBLE_BACKS = (0.0, *(10.0**k for k in range(-4, 4)))
NORM_OF_WEIGHTS = Metric(name="squared_weight_norm", factor=1, unit="squared", digits=0, higher_is_better=False)


def train_size(p: Protocol) -> Experiment:
    """Accuracy by the size of the training set."""

    def arms(double: float, spect: float, jac: float, confidence: float) -> dict[str, tuple[Penalty, ...]]:
        return {
            "Baseline": (),
            "DoubleBack": (p.double_back(double),),
            "SpectReg": (p.spect(spect),),
            "JacReg": (p.jac(jac),),
            "CP": (p.confidence(confidence),),
        }

    return Experiment(
        id="train_size",
        title="Accuracy on MNIST by the size of the training set",
        where="Figure 1, section 4.4, with the weights of appendix C",
        cells=tuple(
            Cell(row=str(size), column=arm, config=p.mnist(p.decay(MNIST_DECAY), *penalties, train_size=size))
            for size, weights in WEIGHTS.items()
            for arm, penalties in arms(*weights).items()
        ),
        claims=claims.TRAIN_SIZE,
        deviations=deviations.TRAIN_SIZE,
    )


def weight_norm(p: Protocol) -> Experiment:
    """DoubleBack's effect on accuracy and on the norm of the weights, for each weight decay."""

    def penalties(decay: float, double: float) -> list[Penalty]:
        return [p.decay(decay)] * bool(decay) + [p.double_back(double)] * bool(double)

    return Experiment(
        id="weight_norm",
        title="Accuracy and squared norm of the weights by the weight of DoubleBack, for each weight decay",
        where="Figure 5, appendix D",
        cells=tuple(
            Cell(row=row, column=f"{double:g}", config=p.mnist(*penalties(float(decay), double)), metric=metric)
            for row_of, metric in ((str, ACCURACY), (claims.of_weights, NORM_OF_WEIGHTS))
            for decay, row in ((decay, row_of(decay)) for decay in claims.DECAYS)
            for double in DOUBLE_BACKS
        ),
        claims=claims.WEIGHT_NORM,
        deviations=deviations.WEIGHT_NORM,
    )


def sin_domain(p: Protocol) -> Experiment:
    """Table 7 beyond what was printed: over the whole domain, and for other draws of the points."""
    return Experiment(
        id="sin_domain",
        title="Mean squared error on SIN over the whole domain by the weight of SpectReg, 20 draws of its points",
        where="Table 7 and figures 2 and 3, section 4.7",
        cells=tuple(
            Cell(row="SIN", column=f"{weight:g}", config=p.sin(*sin_penalties(p, weight)), metric=SIN_ERROR)
            for weight in SIN_MSE
        ),
        claims=claims.TABLE7,
        num_runs=20,
    )


def sin_gradients(p: Protocol) -> Experiment:
    """Whether control at the training points spreads: functions learned on SIN."""
    weights = (0.0, 0.003, 0.03, 0.3, 3.0)
    return _beyond(
        name="sin_gradients",
        title="Slope of the functions learned on SIN, at training points, half way between them and over the domain",
        where="Figures 2 and 3, section 4.7",
        arms={f"SpectReg {weight:g}" if weight else "Baseline": p.sin(*sin_penalties(p, weight)) for weight in weights},
        controlled="SpectReg 0.03",
        num_runs=20,
    )


def mnist_gradients(p: Protocol) -> Experiment:
    """The same on MNIST."""
    decay = p.decay(MNIST_DECAY)
    return _beyond(
        name="mnist_gradients",
        title="Gradient norm on small MNIST, at training images, half way between them and at test images",
        where="section 4.7",
        arms={
            "Baseline": p.mnist(decay),
            "SpectReg": p.mnist(decay, p.spect(0.03)),
            "DoubleBack": p.mnist(decay, p.double_back(50.0)),
        },
        controlled="SpectReg",
        num_runs=10,
    )


def plateaus(p: Protocol) -> Experiment:
    """Every point of SIN twice, 0.001 apart."""
    metrics = {
        "training error": Metric(name="train_mse", factor=1e5, unit="1e-5", digits=1, higher_is_better=False),
        "at training points": _norm("train"),
        "half way between": _norm("between"),
        "over the domain": _norm("test"),
    }
    return Experiment(
        id="plateaus",
        title="SIN with every point twice, at x and x + 0.001: can the network learn a step function?",
        where="section 4.7",
        cells=tuple(
            Cell(row="Baseline", column=column, config=p.sin(data="sin_pairs"), metric=metric)
            for column, metric in metrics.items()
        ),
        deviations=deviations.PLATEAUS,
        num_runs=20,
    )


def sawtooth(p: Protocol) -> Experiment:
    """What too large a weight gives on SIN. Steps would be flat at the training points, and steep between them."""
    metrics = {
        "at training points": _norm("train"),
        "half of that between": replace(_norm("between"), factor=0.5),
        "over the domain": _norm("test"),
    }
    return Experiment(
        id="sawtooth",
        title="Slope of the functions learned on SIN with large weights of SpectReg: teeth or steps?",
        where="section 4.7",
        cells=tuple(
            Cell(row=f"SpectReg {weight}", column=column, config=p.sin(*sin_penalties(p, float(weight))), metric=metric)
            for weight in ("0.03", *claims.TOO_LARGE)
            for column, metric in metrics.items()
        ),
        claims=claims.SAWTOOTH,
        deviations=deviations.SAWTOOTH,
        num_runs=20,
    )


def full_data(p: Protocol) -> Experiment:
    """All training data but for those set aside for validation."""
    return Experiment(
        id="full_data",
        title="Accuracy with all training data",
        where="appendix B",
        cells=(
            Cell(
                row="MNIST, 50 000 images",
                column="Baseline",
                config=p.mnist(p.decay(MNIST_DECAY), train_size=50_000),
                published=Published(99.1, None, num_runs=1),
            ),
            Cell(
                row="CIFAR-10, 40 000 images, augmented",
                column="Baseline",
                config=replace(p.cifar("cifar10", p.decay(CIFAR_DECAY)), train_size=40_000, balanced=False, augment=True),
                published=Published(93.71, None, num_runs=1),
            ),
        ),
        deviations=deviations.FULL_DATA,
    )


def _norm(split: str) -> Metric:
    return Metric(name=f"gradient_norm_{split}", factor=1, unit="norm", higher_is_better=False)


def _beyond(
    *,
    name: str,
    title: str,
    where: str,
    arms: Mapping[str, RunConfig],
    controlled: str,
    num_runs: int,
) -> Experiment:
    return Experiment(
        id=name,
        title=title,
        where=where,
        cells=tuple(
            Cell(row=arm, column=place, config=config, metric=_norm(split))
            for arm, config in arms.items()
            for place, split in zip(claims.PLACES, ("train", "between", "test"), strict=True)
        ),
        claims=claims.beyond(controlled),
        num_runs=num_runs,
    )
