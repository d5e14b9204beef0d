"""A trained model on disk: weights as safetensors, and what is needed to use them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from gradreg.data import Dataset
from gradreg.data.encode import Columns
from gradreg.engines.inputs import logits_of
from gradreg.models import build
from gradreg.training.resident import prepare
from gradreg.training.run import Trained

WEIGHTS, DESCRIPTION, RECORD = "model.safetensors", "model.json", "record.json"


class Standardised(nn.Module):
    """A model between the scales of the data: it takes inputs as they come, and predicts in the unit of the targets.

    Inputs are features ``[n, features]``, or images ``[n, channels, height, width]``: uint8, or floats between 0 and 1; a
    tensor or an array of numpy's. ``columns`` are those of the table that the model was trained on, for
    :func:`~gradreg.data.encode_rows`; none if it was no table.
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, model: nn.Module, scales: dict[str, Tensor], columns: Columns | None = None) -> None:
        super().__init__()
        self.model, self.columns = model, columns or {}
        for name, value in scales.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.as_tensor(x, device=self.mean.device)
        pixels = x.float() / 255 if x.dtype == torch.uint8 else x.to(self.mean.dtype)
        output = logits_of(self.model((pixels - self.mean) / self.std))
        return output * self.target_std + self.target_mean


def save(trained: Trained, dataset: Dataset, folder: Path) -> None:
    """Write the weights, what they belong to, and the record of the run."""
    from safetensors.torch import save_file

    config = trained.record.config
    folder.mkdir(parents=True, exist_ok=True)
    # Copies: parameters that are tied share memory, which the format has no way to say.
    state = {name: value.detach().cpu().contiguous().clone() for name, value in trained.model.state_dict().items()}
    save_file(state, folder / WEIGHTS)
    data = prepare(dataset, config, torch.device("cpu"))
    scales = {"mean": data.train.mean, "std": data.train.std, "target_mean": data.target_mean, "target_std": data.target_std}
    description = {
        "model": _absolute(config.model),
        "input_shape": dataset.input_shape,
        "num_outputs": dataset.num_outputs,
        "dropout": config.dropout,
        "class_names": dataset.class_names,
        "columns": {**dataset.columns},
        "scales": {name: value.tolist() for name, value in scales.items()},
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
    scales = {name: torch.tensor(value) for name, value in told["scales"].items()}
    return Standardised(model, scales, told.get("columns")).eval()


def _absolute(model: str) -> str:
    """A model of the user's own file is found again from another folder."""
    path, colon, function = model.rpartition(":")
    return f"{Path(path).resolve()}{colon}{function}" if path.endswith(".py") else model
