"""Options that several commands share, and what follows from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from gradreg.data import Dataset, check_subset, default_sizes, doubts, load
from gradreg.engines.inputs import logits_of
from gradreg.models import MODELS, build, source_fingerprint
from gradreg.penalties import PENALTIES, Penalty, WeightDecay
from gradreg.study.plan import kind_of
from gradreg.training import RunConfig
from gradreg.training.resident import split_of

EXIT_INTERRUPTED = 130
WHAT, TRAIN, WHERE = "What to train on", "How to train", "Where to run"

Data = Annotated[
    str,
    typer.Option(help="A dataset's name (gradreg data list), or your own .npz, .csv or image folder.", rich_help_panel=WHAT),
]
Model = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(MODELS)}, or yours: package.module:function or file.py:function.",
        show_default="lenet for images of 16 pixels or more, else mlp",
        rich_help_panel=WHAT,
    ),
]
TrainSize = Annotated[
    int | None, typer.Option(help="Examples to train on.", show_default="by dataset", rich_help_panel=WHAT, min=1)
]
ValidationSize = Annotated[
    int | None,
    typer.Option(help="Examples set aside to choose weights.", show_default="by dataset", rich_help_panel=WHAT, min=1),
]
Balanced = Annotated[
    bool, typer.Option("--balanced", help="Draw equally many examples of each class.", rich_help_panel=WHAT)
]
Label = Annotated[str | None, typer.Option(help="Column of a CSV that holds the label.", rich_help_panel=WHAT)]
ImageSize = Annotated[
    int | None, typer.Option(help="Resize an image folder to this many pixels.", rich_help_panel=WHAT, min=4)
]
Task = Annotated[
    str | None,
    typer.Option(
        help="classification, or regression: what your own labels mean.", show_default="by labels", rich_help_panel=WHAT
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of prepared datasets.", rich_help_panel=WHAT, envvar="GRADREG_DATA_DIR")
]
Steps = Annotated[
    int | None,
    typer.Option(help="Batches to train for.", show_default="40 epochs, 400 to 10000", rich_help_panel=TRAIN, min=1),
]
BatchSize = Annotated[int, typer.Option(help="Examples in a batch.", rich_help_panel=TRAIN, min=1)]
Optimizer = Annotated[str, typer.Option(help="adam, or sgd with Nesterov momentum.", rich_help_panel=TRAIN)]
LearningRate = Annotated[
    float, typer.Option(help="Divided by 10 at half and at three quarters of the steps.", rich_help_panel=TRAIN, min=0)
]
Decay = Annotated[
    float,
    typer.Option("--weight-decay", help="In the loss, on weight matrices only; all arms.", rich_help_panel=TRAIN, min=0),
]
Dropout = Annotated[
    float | None, typer.Option(help="Rate of dropout.", show_default="the model's", rich_help_panel=TRAIN, min=0, max=1)
]
#: Engines of a run. Whether it is compiled, or part of a fleet, is no matter of its result.
RUN_ENGINES = ("double_backward", "linearized", "finite_difference", "forward")
Precision = Annotated[str, typer.Option(help="fp32, tf32, bf16 or fp64.", rich_help_panel=WHERE)]
Engine = Annotated[
    str, typer.Option(help=f"How gradients are differentiated: {', '.join(RUN_ENGINES)}.", rich_help_panel=WHERE)
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1.", show_default="cuda if there is one", rich_help_panel=WHERE)
]
Workers = Annotated[
    int | None, typer.Option(help="Processes.", show_default="one a core; on a GPU up to 4", rich_help_panel=WHERE, min=1)
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What decides a run, as it was typed."""

    data: str
    model: str | None
    train_size: int | None
    validation_size: int | None
    balanced: bool
    steps: int | None
    batch_size: int
    optimizer: str
    learning_rate: float
    weight_decay: float
    dropout: float | None
    precision: str
    engine: str

    @classmethod
    def of(cls, ctx: typer.Context) -> TrainingOptions:
        """Those among the parameters of a command."""
        return cls(**{field.name: ctx.params[field.name] for field in fields(cls)})

    def config(self, dataset: Dataset) -> RunConfig:
        """The baseline's config on this dataset."""
        train_size, validation_size = default_sizes(dataset, balanced=self.balanced)
        if self.optimizer not in ("adam", "sgd"):
            raise ValueError(f"--optimizer {self.optimizer!r} is unknown: choose adam or sgd.")
        if self.precision not in ("fp32", "tf32", "bf16", "fp64"):
            raise ValueError(f"--precision {self.precision!r} is unknown: choose fp32, tf32, bf16 or fp64.")
        if self.engine not in RUN_ENGINES:
            raise ValueError(f"--engine {self.engine!r} is unknown: choose {', '.join(RUN_ENGINES)}.")
        if not math.isfinite(self.learning_rate):
            raise ValueError(f"--learning-rate {self.learning_rate} must be a finite number, for instance 0.001.")
        if self.dropout == 1:
            raise ValueError("--dropout 1 would leave nothing to train: choose a rate below 1.")
        num_examples = self.train_size or train_size
        validation_size = validation_size if self.validation_size is None else self.validation_size
        model = self.model or default_model(dataset)
        return RunConfig(
            data=self.data,
            fingerprint=dataset.fingerprint,
            model=model,
            model_source=source_fingerprint(model),
            penalties=(WeightDecay(weight=self.weight_decay),) if self.weight_decay else (),
            train_size=num_examples,
            validation_size=validation_size,
            balanced=self.balanced,
            optimizer=self.optimizer,  # type: ignore[arg-type]
            learning_rate=self.learning_rate,
            num_steps=self.steps or min(10_000, max(400, 40 * num_examples // self.batch_size)),
            batch_size=self.batch_size,
            dropout=self.dropout,
            precision=self.precision,  # type: ignore[arg-type]
            engine=self.engine,
        )


def default_model(dataset: Dataset) -> str:
    """A network that trains in seconds: LeNet for images of 16 pixels or more, else a perceptron."""
    return "lenet" if dataset.is_image and min(dataset.input_shape[1:]) >= 16 else "mlp"


def default_device(device: str | None) -> str:
    """The device asked for, if it is there; else a GPU, if there is one."""
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device!r}: PyTorch finds no CUDA device here. Use --device cpu.")
    if device is not None and not re.fullmatch(r"(cpu|mps|(cuda|xpu)(:\d+)?)", device):
        raise ValueError(f"--device {device!r} is unknown: choose cpu, cuda or, of several, cuda:1.")
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def interruptible(say: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C ends with what there is to say of it, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {say()}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def make_folder(out: Path | None) -> None:
    """Before anything is trained for it."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out} is no folder and cannot be made one ({error.strerror}): name another.") from error


def say_what_is_understood(config: RunConfig, dataset: Dataset, *, quiet: bool) -> None:
    """What will be trained on what, in one line."""
    if quiet:
        return
    what = f"{dataset.num_outputs} classes" if dataset.task == "classification" else f"{dataset.num_outputs} to predict"
    trained = f"trains on {config.train_size} of {len(dataset.x_train)} examples (--train-size)"
    others = f"{config.validation_size} of them are for validation, {len(dataset.x_test)} others to test on"
    text = f"{config.data}: {dataset.task}, {what}; {trained}, {others}; {config.model}, {config.num_steps} steps."
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def check_subsets(configs: Iterable[RunConfig], dataset: Dataset) -> None:
    """Refuse what cannot be learned from, and say what cannot be tested, before anything is trained."""
    for config in configs:
        check_subset(dataset, split_of(dataset, config).train, config.seed)
    for doubt in doubts(dataset):
        typer.echo(f"warning: {doubt}", err=True)


def check_model(config: RunConfig, dataset: Dataset) -> None:
    """Build the model and call it once, so that its mistakes show before any worker starts."""
    if ":" not in config.model:
        build(config.model, dataset.input_shape, dataset.num_outputs)
        return
    shape = dataset.input_shape
    try:
        model = build(config.model, shape, dataset.num_outputs).eval()
        output = logits_of(model(torch.zeros(2, *shape)))
    except Exception as error:
        raise ValueError(
            f"--model {config.model}, on a batch of shape {(2, *shape)}: {type(error).__name__}: {error}"
        ) from error
    if output.shape != (2, dataset.num_outputs):
        raise ValueError(
            f"--model {config.model} gives {tuple(output.shape)} for a batch of 2, expected (2, {dataset.num_outputs}): "
            "return a number for each class, or for each target."
        )
    if dataset.task == "classification" and output.min() >= 0 and torch.allclose(output.sum(1), torch.ones(2), atol=1e-4):
        typer.echo(
            f"warning: --model {config.model} gives probabilities where logits are expected: leave its softmax out.",
            err=True,
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"--model {config.model} has no parameters that require a gradient, so nothing to train.")


def load_data(data: str, data_dir: Path | None, label: str | None, image_size: int | None, task: str | None) -> Dataset:
    if not data:
        raise ValueError("--data is empty: name a dataset (gradreg data list), or a .npz, .csv or image folder.")
    return load(data, data_dir=data_dir, label=label, image_size=image_size, task=task)  # type: ignore[arg-type]


def parse_penalties(text: str) -> list[str]:
    """Names separated by commas or spaces; class names will do as well, and one's own as ``file.py:Class``.

    >>> parse_penalties("SpectReg, double_back")
    ['spect_reg', 'double_back']
    """
    by_class = {kind.__name__.lower(): name for name, kind in PENALTIES.items()}
    words = re.split("," if ":" in text else r"[,\s]+", text)  # the path of a file may have spaces
    names = [by_class.get(word.lower(), word) for word in map(str.strip, words) if word]
    for name in names:
        kind_of(name)
    return names


#: Those that read the output as logits of classes.
OF_CLASSES = ("jac_reg", "one_hot", "top_k", "softmax_projection", "confidence_penalty", "label_smoothing")


def check_penalties(names: Iterable[str], dataset: Dataset) -> None:
    """Refuse penalties that mean nothing for the task, before anything is trained with them."""
    for name in names:
        if dataset.task == "regression" and name in OF_CLASSES:
            raise ValueError(
                f"penalty {name!r} needs classes, and the labels of {dataset.name} are a quantity: choose from "
                f"{', '.join(one for one in PENALTIES if one not in OF_CLASSES)}. If labels of your own are classes, say "
                "--task classification."
            )


def parse_weighted(text: str) -> Penalty:
    """A penalty with its weight, ``spect_reg=0.03``.

    >>> parse_weighted("spect_reg=0.03")
    SpectReg(weight=0.03)
    """
    name, _, weight = text.partition("=")
    try:
        value = float(weight)
    except ValueError:
        raise ValueError(f"--penalty {text!r}: expected name=weight, for instance spect_reg=0.03.") from None
    (known,) = parse_penalties(name) or [""]
    return kind_of(known)(weight=value)


def parse_weights(text: str) -> tuple[str, tuple[float, ...]]:
    """The weights to try for a penalty, ``spect_reg=0.01,0.03,0.1``.

    >>> parse_weights("spect_reg=0.01,0.03")
    ('spect_reg', (0.01, 0.03))
    """
    name, _, values = text.partition("=")
    try:
        weights = tuple(float(value) for value in re.split(r"[,\s]+", values.strip()) if value)
        if not weights:
            raise ValueError("no weight is given")
        return parse_penalties(name)[0], weights
    except (IndexError, ValueError) as error:
        raise ValueError(
            f"--weights {text!r}: expected name=weight,weight,..., for instance spect_reg=0.01,0.1 ({error})."
        ) from error
