"""The public surface: everything documented, nothing heavy imported."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

import gradreg as gr

PENALTIES = [thing for thing in vars(gr).values() if inspect.isclass(thing) and issubclass(thing, gr.Penalty)]
CONCRETE = [penalty for penalty in PENALTIES if not inspect.isabstract(penalty)]


@pytest.mark.parametrize("name", gr.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(gr, name))


@pytest.mark.parametrize("penalty", CONCRETE, ids=lambda p: p.__name__)
def test_every_penalty_says_formula_reduction_cost_and_example(penalty) -> None:
    doc = inspect.getdoc(penalty)
    assert ".. math::" in doc
    assert "mean over the batch" in doc or "er-example value" in doc or "scalar" in doc
    assert "backward pass" in doc
    assert ">>> " in doc
    assert "paper" in doc or "authors" in doc


@pytest.mark.parametrize("penalty", CONCRETE, ids=lambda p: p.__name__)
def test_every_penalty_is_a_frozen_value_with_a_function_of_its_name(penalty) -> None:
    one = penalty(weight=0.5)
    assert one == penalty(weight=0.5)
    assert hash(one) == hash(penalty(weight=0.5))
    assert repr(one) == f"{penalty.__name__}(weight=0.5)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.weight = 1.0
    with pytest.raises(TypeError):
        penalty(0.5)
    function = getattr(gr.functional, penalty.name)
    assert ">>> " in inspect.getdoc(function)
    assert not [base for base in penalty.__mro__[1:] if base in CONCRETE], "concrete classes do not inherit from each other"


def test_functions_and_classes_have_the_same_options_and_defaults() -> None:
    for penalty in CONCRETE:
        defaults = {field.name: field.default for field in dataclasses.fields(penalty)}
        for name, parameter in inspect.signature(getattr(gr.functional, penalty.name)).parameters.items():
            if name in defaults:
                assert parameter.default == defaults[name], (penalty, name)


def test_import_needs_torch_and_numpy_alone() -> None:
    code = (
        "import sys; import torch, numpy; before = set(sys.modules); import gradreg;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() in ("['gradreg']", "['gradreg', 'torch']")
