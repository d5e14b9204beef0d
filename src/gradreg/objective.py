"""The objective: a loss and penalties in one call."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from gradreg.draws import Draws
from gradreg.engines import (
    Auto,
    Choice,
    Compiled,
    DoubleBackward,
    Engine,
    Evaluation,
    choose,
    engine_of,
)
from gradreg.engines.compiled import Prepared, Same, plain_attributes
from gradreg.engines.forward_pass import Pass, call
from gradreg.engines.inputs import Inputs, batch_size, copied, device_of, logits_of, take
from gradreg.losses import Loss, batch_loss, check_shapes, example_loss_gradient, ignored_label, reads_outputs_alone
from gradreg.penalties import GradientPenalty, Penalty, Probe
from gradreg.penalties.schedule import ALWAYS
from gradreg.sources import GeneratorSource, KeyedSource, Source, seed_of

Model = Callable[..., Any]
_LOGGER = logging.getLogger(__name__)


class Terms(NamedTuple):
    """What an objective gives for one batch.

    Attributes:
        total: ``loss`` plus the weighted penalties: call ``backward()`` on it.
        loss: the plain loss, comparable between penalties.
        penalties: the unweighted mean of each penalty that was computed in this call, by name.
        logits: the model's output.
    """

    total: Tensor
    loss: Tensor
    penalties: dict[str, Tensor]
    logits: Tensor


class Objective:
    r"""A loss and any number of penalties: :math:`L + \sum_j \lambda_j\, \mathrm{mean}_i\, P_j(x_i)`.

    It owns the forward pass, so there is nothing to prepare before it, and leaves the caller's tensors, flags,
    running statistics and random state as an ordinary training step would. Where penalties draw random numbers,
    they come from ``generator``, or from a generator seeded by a single draw from PyTorch's global one.

    Args:
        loss: ``loss(logits, y)``, as ``F.cross_entropy``, ``F.mse_loss`` or your own. DoubleBack needs one that takes
            ``reduction="none"`` or returns a value for each example.
        penalties: any of gradreg's penalties, or your own.
        engine: how gradients are differentiated, by name (``"double_backward"``, ``"compiled"``, ``"linearized"``,
            ``"finite_difference"``, ``"forward"``, or ``"auto"``, which chooses in the first call and says why in
            ``objective.choice``) or as an :class:`~gradreg.engines.Engine`.
        class_dim: the dimension of the output that holds the classes; 1 as in ``F.cross_entropy``.
        check_finite: raise when a penalty is NaN or infinite. Reads one flag back from the device in each call.

    Cost: one forward pass, plus for each penalty what its documentation says. Penalties of weight 0 cost nothing.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.03), gr.WeightDecay(weight=0.0005))
    >>> terms = objective(model, x, y)
    >>> terms.total.backward()
    >>> sorted(terms.penalties)
    ['spect_reg', 'weight_decay']
    """

    def __init__(
        self,
        loss: Loss,
        *penalties: Penalty,
        engine: str | Engine = "double_backward",
        class_dim: int = 1,
        check_finite: bool = True,
    ) -> None:
        if isinstance(loss, Penalty):
            raise TypeError(f"the loss is missing before {loss!r}: Objective(F.cross_entropy, {loss!r}, ...).")
        if isinstance(loss, type):
            raise TypeError(f"the loss {loss.__name__} is a class: pass an instance, {loss.__name__}().")
        if not callable(loss):
            raise TypeError(f"the loss {loss!r} is no function: pass one of (logits, y), such as F.cross_entropy.")
        for penalty in penalties:
            if not isinstance(penalty, Penalty):
                raise TypeError(
                    f"{penalty!r} is no penalty: pass instances such as gradreg.SpectReg(weight=0.03), after the loss."
                )
        if class_dim == 0:
            raise ValueError("class_dim=0 is the batch: set the dimension of the output that holds the classes.")
        self.loss = loss
        self.penalties = penalties
        self.engine = engine_of(engine)
        self.choice: Choice | None = None
        self._prepared: dict[Any, Prepared] = {}
        self.class_dim = class_dim
        self.check_finite = check_finite

    def __getstate__(self) -> dict[str, Any]:
        """Without graphs, which belong to this process."""
        return vars(self) | {"_prepared": {}}

    def __repr__(self) -> str:
        parts = [getattr(self.loss, "__name__", repr(self.loss)), *map(repr, self.penalties), f"engine={self.engine.name!r}"]
        return f"Objective({', '.join(parts)})"

    def __call__(
        self,
        model: Model,
        x: Inputs,
        y: Any,
        unlabeled: Inputs | None = None,
        generator: Generator | Draws | None = None,
        *,
        step: int | None = None,
    ) -> Terms:
        """Evaluate the loss and the penalties on one batch.

        Args:
            model: a module, or any function from inputs to logits.
            x: the inputs: a tensor, a tuple for ``model(*x)`` or a dict for ``model(**x)``.
            y: the targets, handed to the loss.
            unlabeled: more inputs, for the gradient penalties that need no labels: these then average over both.
            generator: the source of projections, dropout masks of fresh passes and random parts of the batch. Draws by key
                are the source of the loss's own dropout masks as well.
            step: the number of the training step, for penalties with a schedule.
        """
        active = self.active(step)
        if isinstance(self.engine, Auto):
            self._choose(model, x, active)
        if not isinstance(self.engine, Compiled):
            return self.evaluate(model, x, y, active, unlabeled=unlabeled, source=_source(generator))
        try:
            return self.compiled(self.engine, model, (x, y, unlabeled), active, generator)
        except Exception as error:
            named = self.choice is None  # and not chosen
            if named or isinstance(error, (torch.OutOfMemoryError, FloatingPointError)):
                raise
            # What else is wrong is said without a compiler, too, and then the choice stands.
            choice = Choice(DoubleBackward(), f"the step cannot be compiled: {error}")
            eager = self._with(choice.engine, check_finite=self.check_finite)
            terms = eager.evaluate(model, x, y, active, unlabeled=unlabeled, source=_source(generator))
            self._set_choice(choice, logging.WARNING)
            return terms

    def _choose(self, model: Model, x: Inputs, active: Sequence[Job]) -> None:
        """Replace ``engine="auto"`` by the engine for this model, whatever acts at this step; not where no gradients are."""
        _check_grad_mode(active)
        if not torch.is_grad_enabled():
            return
        penalties = (p for p in self.penalties if isinstance(p, GradientPenalty) and p.weight)
        self._set_choice(choose(model, x, dict.fromkeys(penalty.wrt for penalty in penalties)), logging.INFO)

    def _set_choice(self, choice: Choice, level: int) -> None:
        self.choice, self.engine = choice, choice.engine
        _LOGGER.log(level, "engine=%r: %s", choice.engine.name, choice.reason)

    def _with(self, engine: Engine, *, check_finite: bool) -> Objective:
        return Objective(self.loss, *self.penalties, engine=engine, class_dim=self.class_dim, check_finite=check_finite)

    def compiled(
        self,
        engine: Compiled,
        model: Model,
        data: Any,
        active: Sequence[Job],
        generator: Generator | Draws | None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Terms:
        """The same as one graph, in which an optimizer may take its step: weights and the key for draws become tensors."""
        _check_grad_mode(active)

        def whole(model: nn.Module, data: Any, weights: Sequence[Tensor], key: Tensor) -> tuple[Any, ...]:
            x, y, unlabeled = data
            jobs = [job._replace(weight=weight) for job, weight in zip(active, weights, strict=True)]
            terms = replaced.evaluate(model, x, y, jobs, unlabeled=unlabeled, source=KeyedSource(Draws(key)))
            return terms.total, terms.loss, terms.penalties, terms.logits

        replaced = self._with(engine.traced, check_finite=False)
        gradient = [job.penalty for job in active if isinstance(job.penalty, GradientPenalty)]
        twice = bool(gradient) and isinstance(engine.inner, DoubleBackward)
        weights = {job.name: float(job.weight) for job in active}
        terms = Terms(
            *engine.terms(
                whole,
                model,
                data,
                weights,
                int(generator.key) if isinstance(generator, Draws) else seed_of(generator),
                kept=self._prepared,
                what=self._what(active),
                twice=twice,
                replays=any(penalty.same_mask or not twice for penalty in gradient),
                buffers=[*self.loss.buffers()] if isinstance(self.loss, nn.Module) else [],
                optimizer=optimizer,
            )
        )
        if self.check_finite:
            _check_finite(terms.penalties, terms.logits)
        return terms

    def _what(self, active: Sequence[Job]) -> tuple[Any, ...]:
        """All that a traced graph depends on but for model and data: the loss, its tensors, and the penalties."""
        tensors = [*self.loss.parameters(), *self.loss.buffers()] if isinstance(self.loss, nn.Module) else []
        if any(tensor.requires_grad for tensor in tensors):
            raise ValueError(
                f"engine='compiled' gives gradients to the parameters of the model alone, and the loss, "
                f"{type(self.loss).__name__}, has some of its own. Make them part of the model, or use another engine."
            )
        penalties = [(type(job.penalty), repr(replace(job.penalty, weight=1.0, schedule=ALWAYS))) for job in active]
        settings = plain_attributes(self.loss) if isinstance(self.loss, nn.Module) else ()
        return Same(self.loss), *settings, *(tensor.data_ptr() for tensor in tensors), self.class_dim, *penalties

    def active(self, step: int | None) -> list[Job]:
        """The penalties that act at this step, each with its weight and a name of its own."""
        return [job for job in self.jobs(step) if job.weight > 0]

    def evaluate(
        self, model: Model, x: Inputs, y: Any, active: Sequence[Job], *, source: Source, unlabeled: Inputs | None = None
    ) -> Terms:
        """The terms with these penalties, whose weights may be tensors."""
        self._check_usable(unlabeled)
        _check_grad_mode(active)
        how = Pass(randomness=source.of("loss").masks() if isinstance(source, KeyedSource) else None)
        replay = any(isinstance(job.penalty, GradientPenalty) and job.penalty.same_mask for job in active)
        before = how.again(model, device_of(x)) if replay else None
        evaluation = self._loss_pass(model, x, active, how)
        _check_batch(evaluation.logits, y, active)
        check_shapes(self.loss, evaluation.logits, y)
        loss = batch_loss(self.loss, evaluation.logits, y)
        if not active:
            return Terms(loss, loss, {}, evaluation.logits)
        values = self._values(active, _Batch(model, x, y, evaluation, before), unlabeled, source)
        total = sum((_weighted(job.weight, values[job.name]) for job in active), start=loss)
        return Terms(total, loss, values, evaluation.logits)

    def jobs(self, step: int | None) -> Iterator[Job]:
        """Every penalty with its weight at this step, under a name of its own."""
        seen: Counter[str] = Counter()
        for penalty in self.penalties:
            seen[penalty.name] += 1
            name = penalty.name if seen[penalty.name] == 1 else f"{penalty.name}_{seen[penalty.name]}"
            yield Job(name, penalty, penalty.weight * penalty.schedule.factor(step) if penalty.weight else 0.0)

    def _loss_pass(self, model: Model, x: Inputs, active: Sequence[Job], how: Pass) -> Evaluation:
        """The forward pass of the loss, ready to be differentiated by whatever penalties share it."""
        wrt = dict.fromkeys(p.wrt for _, p, _ in active if isinstance(p, GradientPenalty) and not p.own_pass)
        if wrt:
            return self.engine.evaluate(model, x, wrt=wrt, how=how)
        others = any(isinstance(penalty, GradientPenalty) for _, penalty, _ in active)
        return Evaluation(logits_of(call(model, copied(x) if others else x, how)))

    def _values(self, active: Sequence[Job], batch: _Batch, unlabeled: Inputs | None, source: Source) -> dict[str, Tensor]:
        """The mean of each penalty over the batch, and over the unlabelled data where it can use them."""
        values = {name: penalty(self._probe(penalty, batch, source.of(name))) for name, penalty, _ in active}
        if unlabeled is not None:
            more = _Batch(batch.model, unlabeled)
            for name, penalty, _ in active:
                if _label_free(penalty):
                    more_values = penalty(self._probe(penalty, more, source.of(f"{name} unlabeled")))
                    values[name] = torch.cat([values[name], more_values])
        means = {name: value.mean() for name, value in values.items()}
        if self.check_finite:
            _check_finite(means, batch.evaluated.logits)
        return means

    def _probe(self, penalty: Penalty, batch: _Batch, source: Source) -> Probe:
        """What the penalty sees: the Jacobian for gradient penalties, the parameters for the others."""
        vjp, jvp, parameters = None, None, {}
        if isinstance(penalty, GradientPenalty):
            batch = self._differentiable(penalty, batch, source)
            vjp, jvp = batch.evaluated.vjps.get(penalty.wrt), batch.evaluated.jvps.get(penalty.wrt)
        else:
            parameters = _trainable_parameters(batch.model)
        logits = batch.evaluated.logits
        return Probe(
            logits=logits,
            vjp=vjp,
            jvp=jvp,
            targets=batch.y,
            loss_gradient=partial(example_loss_gradient, self.loss, logits, batch.y),
            source=source,
            class_dim=self.class_dim,
            ignored_label=ignored_label(self.loss),
            exclusive=not reads_outputs_alone(self.loss),
            parameters=parameters,
        )

    def _differentiable(self, penalty: GradientPenalty, batch: _Batch, source: Source) -> _Batch:
        """The batch with the forward pass that the penalty differentiates: the loss's, or one of its own."""
        if batch.evaluation is not None and not penalty.own_pass:
            return batch
        if penalty.fraction < 1:
            batch = batch.part(penalty, source)
        if penalty.same_mask and batch.before is not None:
            how = replace(batch.before, batch_norm=penalty.batch_norm, buffers=None)  # running statistics as they are now
        else:
            how = Pass(own=True, batch_norm=penalty.batch_norm, randomness=source.masks())
        return batch._replace(evaluation=self.engine.evaluate(batch.model, batch.x, wrt=[penalty.wrt], how=how))

    def _check_usable(self, unlabeled: Inputs | None) -> None:
        if unlabeled is not None and not any(_label_free(penalty) for penalty in self.penalties):
            raise ValueError(
                "unlabeled was given, but no penalty here can use it: they need labels or are no gradient penalties. "
                "Add SpectReg, FrobReg or JacReg, or leave unlabeled out."
            )


class Job(NamedTuple):
    """A penalty, and how strongly it acts in this call."""

    name: str
    penalty: Penalty
    weight: float | Tensor


class _Batch(NamedTuple):
    """Inputs and, where there are any, their targets, a forward pass on them, and how to run it again."""

    model: Model
    x: Inputs
    y: Any = None
    evaluation: Evaluation | None = None
    before: Pass | None = None

    @property
    def evaluated(self) -> Evaluation:
        assert self.evaluation is not None
        return self.evaluation

    def part(self, penalty: GradientPenalty, source: Source) -> _Batch:
        """A random part of the batch, of at least one example."""
        size = batch_size(self.x) if self.evaluation is None else len(self.evaluation.logits)
        order = source.permutation(size, device_of(self.x))
        rows = order[: max(1, round(penalty.fraction * size))]
        y = take(self.y, rows, size) if penalty.needs_targets else None
        return self._replace(x=take(self.x, rows, size), y=y)


def _weighted(weight: float | Tensor, value: Tensor) -> Tensor:
    """In the precision of the value."""
    return (weight.to(value.dtype) if isinstance(weight, Tensor) else weight) * value


def _label_free(penalty: Penalty) -> bool:
    return isinstance(penalty, GradientPenalty) and not penalty.needs_targets


def _trainable_parameters(model: Model) -> dict[str, Tensor]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad} if isinstance(model, nn.Module) else {}


def _source(generator: Generator | Draws | None) -> Source:
    if not isinstance(generator, (Generator, Draws, type(None))):
        raise TypeError(f"generator={generator!r} is no generator: pass torch.Generator().manual_seed({generator!r}).")
    return KeyedSource(generator) if isinstance(generator, Draws) else GeneratorSource(generator, forked=True)


def _check_grad_mode(active: Sequence[Job]) -> None:
    gradient_names = [name for name, penalty, _ in active if isinstance(penalty, GradientPenalty)]
    inference = torch.is_inference_mode_enabled()
    if gradient_names and (inference or not torch.is_grad_enabled()):
        where, within = ("inference_mode()", "inference_mode(False)") if inference else ("no_grad()", "enable_grad()")
        raise RuntimeError(
            f"{', '.join(gradient_names)} cannot be computed under torch.{where}, which records no gradients. "
            f"Call the objective outside it (for validation, under torch.{within}), or set the weights to 0."
        )


def _check_batch(logits: Tensor, y: Any, active: Sequence[Job]) -> None:
    if active and logits.ndim == 0:
        raise ValueError("the model returned a single number: penalties need an output for each example, [batch, ...].")
    if active and len(logits) == 0:
        raise ValueError("the batch is empty, and a mean over no examples is not defined: skip it.")
    if active and isinstance(y, Tensor) and y.ndim and y.shape[0] != logits.shape[0]:
        raise ValueError(
            f"the output has {logits.shape[0]} examples and the targets have {y.shape[0]}: dimension 0 must be the same "
            f"batch in both (shapes {tuple(logits.shape)} and {tuple(y.shape)}). Flatten positions inside the loss."
        )


def _check_finite(means: dict[str, Tensor], logits: Tensor) -> None:
    if not means or torch.stack([*means.values()]).isfinite().all():
        return
    name, value = next((name, value.item()) for name, value in means.items() if not value.isfinite())
    cause = (
        "the model's output is not finite either, so training has diverged: lower the learning rate or check the data"
        if not logits.isfinite().all()
        else "the gradient overflowed: lower the weight or the learning rate, warm the penalty up with "
        "Schedule(warmup_steps=...), or leave float16 for bfloat16"
    )
    raise FloatingPointError(f"{name} is {value}: {cause}. (check_finite=False turns this check off.)")
