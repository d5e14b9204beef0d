"""A run on its way, kept on disk: what was stopped goes on from there."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradreg.training.config import RunConfig
from gradreg.training.evaluator import Tensors
from gradreg.training.provenance import provenance
from gradreg.training.session import Session

#: Seconds of training from one snapshot to the next.
KEEP_EVERY = 60.0
#: What is said of the process that a run was begun by.
ORIGIN = ("gradreg", "git", "torch", "device")


def snapshot_path(folder: Path, config: RunConfig) -> Path:
    """Where a run is kept on its way, beside the record that it will give."""
    return folder / f"{config.key}.safetensors"


def forget_snapshot(folder: Path, config: RunConfig) -> None:
    """Remove what was kept of a run, which has its record now."""
    path = snapshot_path(folder, config)
    if path.is_file():
        path.unlink()
        for unfinished in folder.glob(f"{config.key}.*.unfinished"):
            unfinished.unlink(missing_ok=True)


class Snapshot:
    """Keeps a run at points of its curve: weights, the optimizer's state, the curve, and the number of steps done.

    Batches, masks and projections depend on the seed and the step alone. What a model of the user's own draws beyond that
    comes from PyTorch's generator, whose state is kept, too. So a run that was stopped and goes on, by itself and on the
    same machine, ends bit for bit where it would have ended.

    Args:
        session: the run.
        optimizer: of its model.
        folder: where to keep it; None for nowhere.
    """

    def __init__(self, session: Session, optimizer: torch.optim.Optimizer, folder: Path | None) -> None:
        self.session, self.optimizer = session, optimizer
        self.device = session.data.train.x.device
        self.path = None if folder is None else snapshot_path(folder, session.config)
        self.started = self.last = time.perf_counter()

    def resume(self) -> None:
        """Bring the run to where it was kept, if it was; all of it, or nothing."""
        if self.path is None or not self.path.is_file():
            return
        try:
            told, found = _read(self.path)
            _check(found, self._of_model())
            states = self._states(found)
            step, curve, seconds = told["step"], told["curve"], told["seconds"]
            resumed_at = [*told["resumed_at"], {"step": step} | told["origin"]]
        except Exception as error:
            warnings.warn(f"{self.path} is no snapshot of this run ({error}): it starts anew.", stacklevel=2)
            return
        self._restore(found, states)
        self.session.step, self.session.curve, self.started = step, curve, self.started - seconds
        self.session.resumed_at = resumed_at

    def keep(self) -> None:
        """Write it down, if the last time is long ago."""
        now = time.perf_counter()
        if self.path is None or self.session.diverged or now - self.last < KEEP_EVERY:
            return
        self.last = now
        try:
            self._write(self.path, now - self.started)
        except Exception as error:  # SafetensorError on a full disk, which is no OSError
            warnings.warn(f"{self.path} cannot be written ({error}): the run goes on, and is not kept.", stacklevel=2)

    def _write(self, path: Path, seconds: float) -> None:
        from safetensors.torch import save_file

        session, about = self.session, provenance(self.device)
        told = {
            "step": session.step,
            "curve": session.curve,
            "seconds": seconds,
            "resumed_at": session.resumed_at,
            "origin": {name: about[name] for name in ORIGIN},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
        tensors = self._of_model() | self._of_optimizer() | _random_states(self.device)
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        save_file(copies, unfinished, {"run": json.dumps(told)})
        unfinished.replace(path)

    def _of_model(self) -> Tensors:
        model = self.session.model
        return {f"model.{name}": tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def _of_optimizer(self) -> Tensors:
        return {
            f"optimizer.{entry}.{name}": value
            for name, parameter in self.session.model.named_parameters()
            for entry, value in self.optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def _states(self, found: Tensors) -> list[tuple[Tensor, str, Tensor]]:
        """Parameter, entry and value: laid out as their parameters, which fused kernels take for granted."""
        parameters = dict(self.session.model.named_parameters())
        states: list[tuple[Tensor, str, Tensor]] = []
        for name, value in found.items():
            owner, _, rest = name.partition(".")
            if owner == "optimizer":
                entry, _, place = rest.partition(".")
                like = parameters[place]
                new = torch.empty_like(like, dtype=value.dtype) if value.shape == like.shape else value.to(like.device)
                states.append((like, entry, new.copy_(value)))
        if missing := self._of_optimizer().keys() - found.keys():
            raise ValueError(f"{min(missing)} is missing")
        return states

    @torch.no_grad()
    def _restore(self, found: Tensors, states: list[tuple[Tensor, str, Tensor]]) -> None:
        for name, tensor in self._of_model().items():
            tensor.copy_(found[name])
        for parameter, entry, value in states:
            own = self.optimizer.state[parameter]
            if entry in own:
                own[entry].copy_(value)  # where a captured graph knows it
            else:
                own[entry] = value
        _set_random_states(found, self.device)


def _read(path: Path) -> tuple[dict[str, Any], Tensors]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["run"])
        return told, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _check(found: Tensors, mine: Tensors) -> None:
    for name, tensor in mine.items():
        if name not in found:
            raise ValueError(f"{name} is missing")
        if found[name].shape != tensor.shape:
            raise ValueError(f"{name} is {[*found[name].shape]} there and {[*tensor.shape]} here")
        if 0 in tensor.stride() and tensor.numel() > 1:
            raise ValueError(f"{name} is expanded, and cannot be written to")


def _random_states(device: torch.device) -> Tensors:
    states = {"random.cpu": torch.get_rng_state()}
    return states | ({"random.cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_random_states(found: Tensors, device: torch.device) -> None:
    torch.set_rng_state(found["random.cpu"])
    if device.type == "cuda" and "random.cuda" in found:
        torch.cuda.set_rng_state(found["random.cuda"], device)
