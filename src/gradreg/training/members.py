"""The members of a fleet: what they are made of, and what is measured of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradreg.data import Dataset
from gradreg.engines.twice import FastTwice
from gradreg.training.config import RunConfig
from gradreg.training.evaluator import JACOBIAN_BATCH, Evaluator, Scales, Tensors
from gradreg.training.metrics import finite_only, squared_weight_norm
from gradreg.training.record import RunRecord
from gradreg.training.resident import RunData, prepare
from gradreg.training.run import check_seeds_decide_state_alone, initial_model
from gradreg.training.schedule import some
from gradreg.training.session import CURVE_POINTS, NORM_POINTS, add_point, function_columns, half_way, rounded

#: Examples of all members together that are evaluated at once.
EVALUATED_AT_ONCE = 25_000


@dataclass
class Members:
    """The members of a fleet: their data, their tensors with the members in front, and what is measured of them.

    Attributes:
        model: the module that the tensors are put into.
        parameters: those that are trained.
        fixed: parameters that the model's author froze.
        rates: of dropout, where members differ in it.
        alive: which members have not diverged.
    """

    configs: list[RunConfig]
    dataset: Dataset
    data: list[RunData]
    model: nn.Module
    parameters: Tensors
    fixed: Tensors
    buffers: Tensors
    rates: Tensor | None
    alive: Tensor
    curves: list[dict[str, list[float]]]

    @classmethod
    def start(cls, configs: list[RunConfig], dataset: Dataset, device: torch.device) -> Members:
        check_seeds_decide_state_alone(configs, dataset)
        models = [initial_model(config, dataset) for config in configs]
        data = [prepare(dataset, configs[0], device)]
        data += [prepare(dataset, config, device, beside=data[0]) for config in configs[1:]]
        parameters = _stacked([dict(model.named_parameters()) for model in models], device)
        trained = {name for name, parameter in models[0].named_parameters() if parameter.requires_grad}
        return cls(
            configs=configs,
            dataset=dataset,
            data=data,
            parameters={name: tensor for name, tensor in parameters.items() if name in trained},
            fixed={name: tensor for name, tensor in parameters.items() if name not in trained},
            buffers=_stacked([dict(model.named_buffers()) for model in models], device),
            rates=_dropout_rates(models, device),
            alive=torch.ones(len(configs), dtype=torch.bool, device=device),
            curves=[{} for _ in configs],
            model=models[0].to(device),
        )

    @torch.no_grad()
    def model_of(self, member: int) -> nn.Module:
        """The model of one member."""
        model = initial_model(self.configs[member], self.dataset).to(self.device)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(self.tensors[name][member])
        return model

    def records(self) -> list[RunRecord]:
        """What each run gave, as it would be recorded alone."""
        final, norms, functions = self._final_metrics(), self._gradient_norms(), self._learned_functions()
        alive = self.alive.tolist()
        return [
            RunRecord(
                config=config,
                metrics=finite_only(final[member]) | {"diverged": float(not alive[member])},
                curve=self.curves[member],
                gradient_norms={name: rounded(of[member][of[member].isfinite()]) for name, of in norms.items()},
                function=functions[member],
            )
            for member, config in enumerate(self.configs)
        ]

    def add_points(self, number: int, means: Tensors) -> None:
        """Add to the curve of each member that is alive: the step, these means, and the metrics of the evaluated split."""
        found = zip(self.curves, _by_member(means), self._metrics("evaluated", CURVE_POINTS), strict=True)
        for (curve, own_means, metrics), lives in zip(found, self.alive.tolist(), strict=True):
            if lives:
                add_point(curve, {"step": number} | finite_only(own_means | metrics))

    def _final_metrics(self) -> list[dict[str, float]]:
        norms = torch.func.vmap(squared_weight_norm)(self.parameters | self.fixed).tolist()
        found = zip(self._metrics("evaluated"), self._metrics("train"), norms, strict=True)
        return [
            metrics | {f"train_{name}": value for name, value in train.items()} | {"squared_weight_norm": norm}
            for metrics, train, norm in found
        ]

    def _metrics(self, part: str, at_most: int | None = None) -> list[dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for group in self._groups(part, at_most):
            dims = (0, 0, group.dim, group.dim)
            evaluate = torch.func.vmap(self.evaluator.metrics, dims, chunk_size=self._chunk(group.num_examples))
            with FastTwice():
                columns = evaluate(group.of(self.tensors), group.scales(self.scales), group.x, group.y)
            found |= zip(group.members, _by_member(columns), strict=True)
        return [found[member] for member in range(len(self.configs))]

    def _gradient_norms(self) -> dict[str, list[Tensor]]:
        found = {"train": self._norms_on("train"), self.configs[0].evaluate_on: self._norms_on("evaluated")}
        return found | {"between": self._norms_on("train", half_way)}

    def _norms_on(self, part: str, move: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        chunk = self._chunk(JACOBIAN_BATCH * self.dataset.num_outputs)
        for group in self._groups(part, NORM_POINTS):
            measure = torch.func.vmap(self._norms_at(move), (0, 0, group.dim), chunk_size=chunk)
            norms = measure(group.of(self.tensors), group.scales(self.scales), group.x)
            found |= zip(group.members, norms, strict=True)
        return [found[member] for member in range(len(self.configs))]

    def _norms_at(self, move: Callable[[Tensor], Tensor]) -> Callable[[Tensors, Scales, Tensor], Tensor]:
        return lambda tensors, scales, x: self.evaluator.gradient_norms(tensors, scales, move(x))

    def _learned_functions(self) -> Sequence[dict[str, list[float]] | None]:
        columns = [function_columns(c, self.dataset.task, d) for c, d in zip(self.configs, self.data, strict=True)]
        if columns[0] is None:
            return [None] * len(columns)
        x = columns[0]["x"]
        predict = torch.func.vmap(self.evaluator.predictions, (0, 0, None))
        found = predict(self.tensors, self.scales, x.unsqueeze(1)).flatten(1)
        whole = [None if own is None else own | {"y": y} for own, y in zip(columns, found, strict=True)]
        return [
            {name: rounded(column) for name, column in own.items()}
            if own and all(column.isfinite().all() for column in own.values())
            else None
            for own in whole
        ]

    def _groups(self, part: str, at_most: int | None) -> Iterator[Group]:
        """Examples of the evaluated split, which all share; or of the training subsets, by their size."""
        parts = [getattr(data, part) for data in self.data]
        shared = part == "evaluated"
        for size in dict.fromkeys(map(len, parts)):
            who = [member for member, own in enumerate(parts) if len(own) == size]
            rows = some(size, at_most or size, self.device)
            own = [(parts[member].x[rows], parts[member].y[rows]) for member in (who[:1] if shared else who)]
            x, y = (torch.stack(columns) for columns in zip(*own, strict=True))
            yield Group(who, *((x[0], y[0], None) if shared else (x, y, 0)))

    def _chunk(self, examples: int) -> int:
        """How many members to evaluate at once."""
        return max(1, EVALUATED_AT_ONCE // min(examples, 1000))

    @property
    def tensors(self) -> Tensors:
        return self.parameters | self.fixed | self.buffers

    @property
    def scales(self) -> Scales:
        return Scales(*(torch.stack(values) for values in zip(*map(Scales.of, self.data), strict=True)))

    @property
    def device(self) -> torch.device:
        return self.data[0].train.x.device

    @property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.configs[0], self.dataset.task, self.model, self.device)


class Group(NamedTuple):
    """Some members, and examples for them: each its own, stacked in front (``dim`` is 0), or shared by all (None)."""

    members: list[int]
    x: Tensor
    y: Tensor
    dim: int | None

    @property
    def num_examples(self) -> int:
        return self.x.shape[0 if self.dim is None else 1]

    def of(self, tensors: Tensors) -> Tensors:
        return {name: tensor[self.members] for name, tensor in tensors.items()}

    def scales(self, scales: Scales) -> Scales:
        return Scales(*(tensor[self.members] for tensor in scales))


def _stacked(named: list[Tensors], device: torch.device) -> Tensors:
    return {name: torch.stack([one[name].detach() for one in named]).to(device) for name in named[0]}


def _dropout_rates(models: list[nn.Module], device: torch.device) -> Tensor | None:
    """The rate of each member's dropout layers, where they differ between members."""
    rates = [[layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] for model in models]
    if all(own == rates[0] for own in rates):
        return None
    dtype = next(models[0].parameters()).dtype
    return torch.tensor([own[0] for own in rates], dtype=dtype, device=device)


def _by_member(columns: Tensors) -> list[dict[str, float]]:
    """From one tensor a name to one dict a member."""
    lists = {name: column.tolist() for name, column in columns.items()}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
