"""A trained model on disk: weights as safetensors, and what is needed to use them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from gradreg.data import Dataset
from gradreg.data.encode import Columns
from gradreg.engines.inputs import logits_of
from gradreg.models import build, source_fingerprint
from gradreg.training.resident import prepare
from gradreg.training.run import Trained

WEIGHTS, DESCRIPTION, RECORD, CODE = "model.safetensors", "model.json", "record.json", "gradreg_model.py"
#: Of pixels between 0 and 1; some more for what resizing adds.
MOST_BRIGHT = 1.5


class Standardised(nn.Module):
    """A model between the scales of the data: it takes inputs as they come, and predicts in the unit of the targets.

    Inputs are features ``[n, features]``, or images ``[n, channels, height, width]``: uint8, or floats between 0 and 1; a
    tensor or an array of numpy's.

    Attributes:
        input_shape: of one example.
        class_names: in the order of the logits; none for a quantity.
        columns: those of the table that the model was trained on, for :func:`~gradreg.data.encode_rows`; none if it was no
            table.
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(
        self,
        model: nn.Module,
        scales: dict[str, Tensor],
        input_shape: Sequence[int],
        class_names: Sequence[str] = (),
        columns: Columns | None = None,
    ) -> None:
        super().__init__()
        self.model, self.columns = model, columns or {}
        self.input_shape, self.class_names = tuple(input_shape), tuple(class_names)
        for name, value in scales.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        x = _as_tensor(x).to(self.mean.device)
        _check_inputs(x, self.input_shape)
        in_bytes = x.dtype == torch.uint8 and _is_image(self.input_shape)
        x = x.to(self.mean.dtype) / (255 if in_bytes else 1)
        output = logits_of(self.model((x - self.mean) / self.std))
        return output * self.target_std + self.target_mean


def _as_tensor(x: object) -> Tensor:
    """A copy where PyTorch would warn that it may not write to it."""
    return torch.as_tensor(x.copy() if isinstance(x, np.ndarray) and not x.flags.writeable else x)


def _is_image(shape: Sequence[int]) -> bool:
    return len(shape) == 3


def _check_inputs(x: Tensor, shape: tuple[int, ...]) -> None:
    if x.shape[1:] != shape:
        numbers = ", ".join(map(str, shape))
        raise ValueError(f"the model takes [n, {numbers}], and was given {tuple(x.shape)}: {_way_to(shape, tuple(x.shape))}")
    if not _is_image(shape):
        return
    if not x.is_floating_point() and x.dtype != torch.uint8:
        raise ValueError(f"pixels are uint8, or floats between 0 and 1, and were given as {x.dtype}: x.astype('uint8').")
    if x.is_floating_point() and x.numel() and _may_be_looked_at(x) and x.max() > MOST_BRIGHT:
        raise ValueError(
            f"pixels are floats between 0 and 1, and there is one of {x.max():g}: divide by 255, or give uint8. Standardise "
            "nothing, the model does."
        )


def _may_be_looked_at(x: Tensor) -> bool:
    """Not while it is traced, compiled or transformed, and not where all would wait for it."""
    traced = torch.compiler.is_compiling() or get_proxy_mode() is not None
    return not traced and torch._C._functorch.maybe_current_level() is None and x.device.type == "cpu"


def _way_to(shape: tuple[int, ...], given: tuple[int, ...]) -> str:
    if given == shape:
        return "x[None] makes a batch of one example."
    if _is_image(shape) and given[1:] == (*shape[1:], shape[0]):
        return "x.transpose(0, 3, 1, 2) puts the channels of numpy's arrays there."
    if _is_image(shape) and given[1:] == shape[1:]:
        return "x[:, None] adds the channel."
    return "gradreg.data.encode_rows (tables) and encode_images (pictures) make such inputs."


def save(trained: Trained, dataset: Dataset, folder: Path) -> None:
    """Write the weights, what they belong to, the record of the run, and a copy of the file of the user's own model."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    config = trained.record.config
    folder.mkdir(parents=True, exist_ok=True)
    # Copies: parameters that are tied share memory, which the format has no way to say.
    state = {name: value.detach().cpu().contiguous().clone() for name, value in trained.model.state_dict().items()}
    try:
        save_file(state, folder / WEIGHTS)
    except SafetensorError as error:
        raise OSError(f"{folder / WEIGHTS} cannot be written ({error}): give another folder, or make room.") from error
    data = prepare(dataset, config, torch.device("cpu"))
    scales = {"mean": data.train.mean, "std": data.train.std, "target_mean": data.target_mean, "target_std": data.target_std}
    description = {
        "model": _absolute(config.model),
        "model_source": config.model_source,
        "input_shape": dataset.input_shape,
        "num_outputs": dataset.num_outputs,
        "dropout": config.dropout,
        "class_names": dataset.class_names,
        "columns": {**dataset.columns},
        "scales": {name: value.tolist() for name, value in scales.items()},
    }
    if _is_file(config.model):
        (folder / CODE).write_bytes(Path(_file_of(config.model)).read_bytes())
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1))
    (folder / RECORD).write_text(json.dumps(trained.record.to_data(), allow_nan=False))


def load_model(folder: str | Path) -> Standardised:
    """The model that ``gradreg train`` saved, in evaluation mode, with its standardisation in front."""
    from safetensors.torch import load_file

    folder = Path(folder)
    if not (folder / DESCRIPTION).is_file():
        raise ValueError(f"{folder} holds no model: gradreg train --out writes one ({WEIGHTS} and {DESCRIPTION}).")
    told = json.loads((folder / DESCRIPTION).read_text())
    model = build(_code(folder, told), tuple(told["input_shape"]), told["num_outputs"], dropout=told["dropout"])
    model.load_state_dict(load_file(folder / WEIGHTS))
    scales = {name: torch.tensor(value) for name, value in told["scales"].items()}
    return Standardised(model, scales, told["input_shape"], told["class_names"], told.get("columns")).eval()


def _code(folder: Path, told: Mapping[str, Any]) -> str:
    """The user's own model as it was trained: where it was, or else in the copy that lies beside the weights."""
    name, source = told["model"], told.get("model_source")
    if not source or _is_as_it_was(name, source):
        return str(name)
    copy = f"{folder / CODE}:{name.rpartition(':')[2]}"
    if (folder / CODE).is_file() and _is_as_it_was(copy, source):
        return copy
    raise ValueError(
        f"{name} is not there, or was changed since {folder} was trained with it, and so may be what it imports from beside "
        "it: bring them back as they were."
    )


def _is_as_it_was(name: str, source: str) -> bool:
    try:
        return source_fingerprint(name) == source
    except ValueError:  # it is gone, or cannot be imported any more
        return False


def _absolute(model: str) -> str:
    """A model of the user's own file is found again from another folder."""
    return f"{Path(_file_of(model)).resolve()}:{model.rpartition(':')[2]}" if _is_file(model) else model


def _is_file(model: str) -> bool:
    return _file_of(model).endswith(".py")


def _file_of(model: str) -> str:
    return model.rpartition(":")[0]
