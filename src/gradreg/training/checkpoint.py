"""A trained model on disk: weights as safetensors, and what is needed to use them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from gradreg.data import Dataset, Scaler, split
from gradreg.models import build
from gradreg.training.run import Trained

WEIGHTS, DESCRIPTION, RECORD = "model.safetensors", "model.json", "record.json"


class Standardised(nn.Module):
    """A model with its standardisation in front: it takes features, or pixels between 0 and 1, as they come."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x - self.mean) / self.std)
        return logits


def save(trained: Trained, dataset: Dataset, folder: Path) -> None:
    """Write the weights, what they belong to, and the record of the run."""
    from safetensors.torch import save_file

    config = trained.record.config
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in trained.model.state_dict().items()}, folder / WEIGHTS
    )
    sizes = {"train_size": config.train_size, "validation_size": config.validation_size}
    rows = split(dataset, **sizes, seed=config.seed, balanced=config.balanced).train
    scaler = Scaler.of(dataset, dataset.x_train[rows])
    description = {
        "model": config.model,
        "input_shape": dataset.input_shape,
        "num_outputs": dataset.num_outputs,
        "dropout": config.dropout,
        "class_names": dataset.class_names,
        "mean": scaler.mean.tolist(),
        "std": scaler.std.tolist(),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1))
    (folder / RECORD).write_text(json.dumps(trained.record.to_data(), allow_nan=False))


def load_model(folder: str | Path) -> Standardised:
    """The model that ``gradreg train`` saved, in evaluation mode, with its standardisation in front."""
    from safetensors.torch import load_file

    folder = Path(folder)
    if not (folder / DESCRIPTION).is_file():
        raise ValueError(f"{folder} holds no model: gradreg train --out writes one ({WEIGHTS} and {DESCRIPTION}).")
    told = json.loads((folder / DESCRIPTION).read_text())
    model = build(told["model"], tuple(told["input_shape"]), told["num_outputs"], dropout=told["dropout"])
    model.load_state_dict(load_file(folder / WEIGHTS))
    return Standardised(model, torch.tensor(told["mean"]), torch.tensor(told["std"])).eval()
