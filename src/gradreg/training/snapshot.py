"""A run on its way, kept on disk: what was stopped goes on from there."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from gradreg.training.config import RunConfig
from gradreg.training.session import Session

#: Seconds of training from one snapshot to the next.
KEEP_EVERY = 60.0


def snapshot_path(folder: Path, config: RunConfig) -> Path:
    """Where a run is kept on its way, beside the record that it will give."""
    return folder / f"{config.key}.safetensors"


class Snapshot:
    """Keeps a run at points of its curve: weights, the optimizer's state, the curve, and the number of steps done.

    Nothing else is needed. Batches, masks and projections depend on the seed and the step alone, so that a run that was
    stopped and goes on ends bit for bit where it would have ended.

    Args:
        session: the run.
        optimizer: of its model.
        folder: where to keep it; None for nowhere.
    """

    def __init__(self, session: Session, optimizer: torch.optim.Optimizer, folder: Path | None) -> None:
        self.session, self.optimizer = session, optimizer
        self.path = None if folder is None else snapshot_path(folder, session.config)
        self.started = self.last = time.perf_counter()

    def resume(self) -> None:
        """Bring the run to where it was kept, if it was."""
        if self.path is None or not self.path.is_file():
            return
        try:
            self._load(self.path)
        except Exception as error:
            warnings.warn(f"{self.path} is no snapshot of this run ({error}): it starts anew.", stacklevel=2)

    def keep(self) -> None:
        """Write it down, if the last time is long ago."""
        now = time.perf_counter()
        if self.path is None or self.session.diverged or now - self.last < KEEP_EVERY:
            return
        self.last = now
        from safetensors.torch import save_file

        told = {"step": self.session.step, "curve": self.session.curve, "resumed_at": self.session.resumed_at}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(f".{os.getpid()}.tmp")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._tensors()}
        save_file(tensors, unfinished, {"run": json.dumps(told | {"seconds": now - self.started})})
        unfinished.replace(self.path)

    def _load(self, path: Path) -> None:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            told = json.loads(file.metadata()["run"])
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        _check(found, {f"model.{name}": tensor for name, tensor in self.session.model.state_dict().items()})
        with torch.no_grad():
            self._make_state(found)
            for name, tensor in self._tensors():
                tensor.copy_(found[name])
        self.session.step, self.session.curve = told["step"], told["curve"]
        self.session.resumed_at = [*told["resumed_at"], told["step"]]
        self.started -= told["seconds"]

    def _make_state(self, found: dict[str, Tensor]) -> None:
        """Of an optimizer that took no step yet: laid out as its parameters, which fused kernels take for granted."""
        parameters = dict(self.session.model.named_parameters())
        for name, value in found.items():
            owner, _, rest = name.partition(".")
            entry, _, parameter = rest.partition(".")
            if owner == "optimizer" and entry not in self.optimizer.state[parameters[parameter]]:
                like = parameters[parameter]
                new = torch.empty_like(like) if value.shape == like.shape else value.to(like.device)
                self.optimizer.state[like][entry] = new

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        model = self.session.model
        yield from ((f"model.{name}", tensor) for name, tensor in model.state_dict().items())
        for name, parameter in model.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            entries = ((entry, value) for entry, value in state.items() if isinstance(value, Tensor))
            yield from ((f"optimizer.{entry}.{name}", value) for entry, value in entries)


def _check(found: dict[str, Tensor], mine: dict[str, Tensor]) -> None:
    """Before anything is changed."""
    for name, tensor in mine.items():
        if name not in found:
            raise ValueError(f"{name} is missing")
        if found[name].shape != tensor.shape:
            raise ValueError(f"{name} is {[*found[name].shape]} there and {[*tensor.shape]} here")
