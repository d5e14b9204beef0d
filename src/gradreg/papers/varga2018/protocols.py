"""How the authors trained: what their text says, and what their code did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from gradreg.data.authors import SUFFIX
from gradreg.penalties import (
    ConfidencePenalty,
    DoubleBack,
    FrobReg,
    JacReg,
    OneHot,
    Penalty,
    RandomOneHot,
    SpectReg,
    WeightDecay,
)
from gradreg.training import RunConfig

ProtocolName = Literal["authors_code", "authors_seeds", "paper", "short"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)

#: Under the protocol ``short`` CIFAR is trained in so many times fewer steps, and at so many times the learning rate: weight
#: decay then has as much effect in all, since that goes with the sum of the rates.
SHORTER = 20


@dataclass(frozen=True)
class Protocol:
    """One way to read the paper: the settings of each dataset, and the form of each penalty.

    ``authors_code`` is what ran, and ``authors_seeds`` the same with the training images, initial weights and test images
    of the authors' own seeds, 1 to 10; ``paper`` is the text where it differs (learning rates, balanced subsets, penalties
    on the loss's own forward pass, means for sums); ``short`` is ``authors_code`` with a twentieth of the steps on CIFAR,
    at twenty times the learning rate.

    >>> Protocol("paper").mnist().learning_rate
    0.1
    """

    name: ProtocolName = "authors_code"

    @property
    def as_written(self) -> bool:
        return self.name == "paper"

    # ---- datasets ----

    def mnist(
        self, *penalties: Penalty, train_size: int = 2000, model: str = "lenet", dropout: float | None = None
    ) -> RunConfig:
        """LeNet on small MNIST: Adam, batches of 50, 10 000 steps."""
        config = RunConfig(
            data="mnist",
            fingerprint="",
            model=model,
            dropout=dropout,
            penalties=penalties,
            train_size=train_size,
            validation_size=10_000,
            balanced=self.as_written and train_size % 10 == 0 and train_size <= 20_000,
            optimizer="adam",
            learning_rate=0.1 if self.as_written else 0.001,
            num_steps=10_000,
            batch_size=50,
            precision="tf32",
        )
        return self._drawn(config)

    def cifar(self, name: Literal["cifar10", "cifar100"], *penalties: Penalty) -> RunConfig:
        """The ResNet on small CIFAR: SGD with Nesterov momentum, batches of 128, 50 000 steps."""
        shorter = SHORTER if self.name == "short" else 1
        config = RunConfig(
            data=name,
            fingerprint="",
            model="resnet",
            penalties=penalties,
            train_size={"cifar10": 2000, "cifar100": 20_000}[name],
            validation_size=10_000,
            balanced=self.as_written,
            optimizer="sgd",
            learning_rate=0.1 if self.as_written else shorter * 0.01,
            num_steps=50_000 // shorter,
            batch_size=128,
            precision="bf16",
            num_evaluations=20 // shorter,
        )
        return self._drawn(config)

    def tinyimagenet(self, *penalties: Penalty) -> RunConfig:
        """ResNet-18 on TinyImageNet: Adam, batches of 64, 75 epochs, a tenth of the rate after 25 and 50."""
        return RunConfig(
            data="tinyimagenet",
            fingerprint="",
            model="resnet18",
            penalties=penalties,
            train_size=90_000,
            validation_size=10_000,
            optimizer="adam",
            learning_rate=0.001,
            drops=(1 / 3, 2 / 3),
            num_steps=75 * 90_000 // 64,
            batch_size=64,
            precision="bf16",
        )

    def _drawn(self, config: RunConfig) -> RunConfig:
        """As it is, or with what the authors' seeds draw, the first of which is 1."""
        if self.name != "authors_seeds":
            return config
        return replace(config, data=config.data + SUFFIX, validation_size=0, seed=1)

    def sin(self, *penalties: Penalty, data: str = "sin") -> RunConfig:
        """Five layers of 64 on SIN: Adam, batches of 50, 10 000 steps; on the authors' points in the authors' order."""
        size = 200 if data == "sin_pairs" else 100
        return RunConfig(
            data=data,
            fingerprint="",
            model="mlp",
            penalties=penalties,
            train_size=size,
            validation_size=0 if data.endswith(SUFFIX) else 10 * size,
            optimizer="adam",
            learning_rate=0.01,
            num_steps=10_000,
            batch_size=50,
            shuffle=not data.endswith(SUFFIX),
        )

    # ---- penalties ----

    def decay(self, weight: float) -> WeightDecay:
        return WeightDecay(weight=weight)

    def spect(self, weight: float) -> SpectReg:
        """One Gaussian projection shared by the batch; in the code on a forward pass of its own."""
        return SpectReg(weight=weight, forward=self._forward)

    def jac(self, weight: float) -> JacReg:
        return JacReg(weight=weight, forward=self._forward)

    def frob(self, weight: float) -> FrobReg:
        return FrobReg(weight=weight, forward=self._forward)

    def one_hot(self, weight: float) -> OneHot:
        return OneHot(weight=weight, forward=self._forward)

    def random_one_hot(self, weight: float) -> RandomOneHot:
        return RandomOneHot(weight=weight, forward=self._forward)

    def double_back(self, weight: float) -> DoubleBack:
        return DoubleBack(weight=weight)

    def confidence(self, weight: float) -> ConfidencePenalty:
        """The code sums over the batch, where the text has an expectation."""
        return ConfidencePenalty(weight=weight, reduction="mean" if self.as_written else "sum")

    @property
    def _forward(self) -> Literal["shared", "fresh"]:
        return "shared" if self.as_written else "fresh"

    def shared(self, penalty: SpectReg) -> SpectReg:
        """On the loss's own forward pass: the same function where there is no dropout, for a third of the cost less."""
        return replace(penalty, forward="shared")


def protocol(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise ValueError(f"protocol {name!r} is unknown: choose {', '.join(PROTOCOLS)}.")
    return Protocol(name)
