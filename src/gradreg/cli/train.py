"""``gradreg train``: a single run, and its model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from gradreg.cli import options as o
from gradreg.data import Dataset
from gradreg.training import RunConfig, Trained
from gradreg.training.checkpoint import save
from gradreg.training.run import Progress as Told
from gradreg.training.run import run


def train(
    ctx: typer.Context,
    data: o.Data = "digits",
    model: o.Model = None,
    penalty: Annotated[list[str] | None, typer.Option(help="name=weight, for instance spect_reg=0.03. Repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the training subset and everything random.")] = 0,
    train_size: o.TrainSize = None,
    validation_size: Annotated[
        int | None,
        typer.Option(help="Examples set aside.", show_default="by dataset", rich_help_panel=o.WHAT, min=0),
    ] = None,
    balanced: o.Balanced = False,
    label: o.Label = None,
    image_size: o.ImageSize = None,
    task: o.Task = None,
    data_dir: o.DataDir = None,
    steps: o.Steps = None,
    batch_size: o.BatchSize = 50,
    optimizer: o.Optimizer = "adam",
    learning_rate: o.LearningRate = 0.001,
    weight_decay: o.Decay = 0.0005,
    dropout: o.Dropout = None,
    precision: o.Precision = "fp32",
    engine: o.Engine = "double_backward",
    device: o.Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder to save the model in.", rich_help_panel=o.WHERE)] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard's curves.", rich_help_panel=o.WHERE)
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Train one model, evaluate it on the test data and save it."""
    dataset = o.load_data(data, data_dir, label, image_size, task)
    base = o.TrainingOptions.of(ctx).config(dataset)
    o.check_model(base, dataset)
    config = add_penalties(base, penalty or [], seed)
    o.check_penalties((one.name for one in config.penalties), dataset)
    o.check_subsets([config], dataset)
    where = o.default_device(device)
    o.make_folder(out)
    o.say_what_is_understood(config, dataset, quiet=as_json)
    with o.interruptible(lambda: "nothing is saved."), _progress(config, tensorboard, quiet=as_json) as progress:
        trained = run(config, dataset, device=where, progress=progress)
    if trained.record.metrics["diverged"]:
        raise ValueError(
            "training diverged: the loss or a penalty is not finite any more. Nothing is saved; lower --learning-rate, or "
            "the weight of --penalty."
        )
    if out is not None:
        save(trained, dataset, out)
    _show(trained, out, as_json)
    if out is not None and not as_json:
        _say_how_to_use(out, dataset, pictures=Path(data).is_dir())


def add_penalties(base: RunConfig, penalties: list[str], seed: int) -> RunConfig:
    from dataclasses import replace

    added = tuple(o.parse_weighted(text) for text in penalties)
    kept = tuple(one for one in base.penalties if type(one) not in {type(new) for new in added})
    return replace(base, penalties=kept + added, seed=seed, arm="+".join(type(p).__name__ for p in added) or "baseline")


@contextmanager
def _progress(config: RunConfig, tensorboard: Path | None, quiet: bool) -> Iterator[Told]:
    """A bar on the terminal and, if asked for, curves in TensorBoard."""
    console = Console(stderr=True)
    writer = _writer(tensorboard)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("training", total=config.num_steps)

        def told(step: int, curve: dict[str, list[float]]) -> None:
            bar.update(task, completed=step, description=f"loss {curve['train_loss'][-1]:.4f}")
            if writer is not None:
                for name, values in curve.items():
                    if not math.isnan(values[-1]):
                        writer.add_scalar(name, values[-1], step)

        yield told
    if writer is not None:
        writer.close()


def _writer(folder: Path | None):  # type: ignore[no-untyped-def]  # tensorboard is optional
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ValueError(f"--tensorboard needs {error.name}: pip install 'gradreg[tensorboard]'.") from error
    return SummaryWriter(folder)


def _show(trained: Trained, out: Path | None, as_json: bool) -> None:
    record = trained.record
    if as_json:
        typer.echo(json.dumps(record.to_data() | {"saved": None if out is None else str(out)}))
        return
    console = Console()
    for name, value in record.metrics.items():
        shown = f"{100 * value:.2f} %" if "accuracy" in name or "top5" in name else f"{value:.5g}"
        console.print(f"{name:22} {shown}", highlight=False)


def _say_how_to_use(out: Path, dataset: Dataset, *, pictures: bool) -> None:
    encode, x = "", "x"
    if dataset.columns:
        encode, x = "from gradreg.data import encode_rows\n", "encode_rows(rows, model.columns)"
    elif pictures:
        encode, x = "from gradreg.data import encode_images\n", "encode_images(paths, model.input_shape)"
    imports = f"{encode}from gradreg.training.checkpoint import load_model"
    told = f"\nSaved in {out}. To use it:\n\n{imports}\nmodel = load_model({str(out)!r})\noutput = model({x})"
    Console().print(told, highlight=False, markup=False, soft_wrap=True)
