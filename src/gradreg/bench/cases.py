"""The models that are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradreg.models import lenet, mlp, resnet, resnet18


@dataclass(frozen=True)
class Case:
    """A model, its data and its precision.

    Attributes:
        name: of the model.
        make: builds it for a number of classes.
        input_shape: of one example.
        num_classes, batch_size: the paper's, unless changed.
        precision: ``fp32``, ``tf32`` or ``bf16``.
    """

    name: str
    make: Callable[[int], nn.Module]
    input_shape: tuple[int, ...]
    num_classes: int
    batch_size: int
    precision: str = "fp32"

    def on(self, device: torch.device) -> tuple[nn.Module, Tensor, Tensor]:
        """The model and a random batch."""
        generator = torch.Generator().manual_seed(0)
        model = self.make(self.num_classes).to(device)
        x = torch.randn(self.batch_size, *self.input_shape, generator=generator).to(device)
        y = torch.randint(self.num_classes, (self.batch_size,), generator=generator).to(device)
        if x.ndim == 4 and x.is_cuda:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = x.to(memory_format=torch.channels_last)
        return model, x, y

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")


class Transformer(nn.Module):
    """A small classifier of sequences: four layers of width 128 with four heads."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


CASES = {
    case.name: case
    for case in (
        Case("mlp", lambda classes: mlp(64, classes, hidden=(128, 128)), (64,), 10, 50),
        Case("lenet", lambda classes: lenet(classes), (1, 28, 28), 10, 50),
        Case("resnet", lambda classes: resnet(classes), (3, 32, 32), 10, 128),
        Case("resnet18", lambda classes: resnet18(classes), (3, 64, 64), 200, 64),
        Case("transformer", Transformer, (64, 128), 10, 64),
    )
}


def case_of(name: str, *, batch_size: int | None, num_classes: int | None, precision: str) -> Case:
    """The case of that name with other sizes."""
    if name not in CASES:
        raise ValueError(f"model {name!r} is no benchmark: choose {', '.join(CASES)}.")
    case = CASES[name]
    return replace(
        case,
        batch_size=batch_size or case.batch_size,
        num_classes=num_classes or case.num_classes,
        precision=precision,
    )
