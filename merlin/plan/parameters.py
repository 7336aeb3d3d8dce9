"""Combinations of global.parameters: the i-th values of all parameters make the i-th combination.

A generator file (``--pgen``) replaces the block of the spec; it is called as Maestro calls it and returns
Maestro's own ParameterGenerator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.base.document.tokens import substitute
from merlin.errors import UsageError
from merlin.plan.plan import Scalar

if TYPE_CHECKING:
    from merlin.spec.model import Document

_LABEL_TOKEN = "%%"


class Combination(Struct, frozen=True):
    """One value and one label for every parameter."""

    values: Mapping[str, Scalar]
    labels: Mapping[str, str]
    names: Mapping[str, str] = field(default_factory=dict)  # what $(NAME.name) is, where it is not NAME

    def label(self, names: Iterable[str]) -> str:
        """The labels of some parameters in the order of their names: "X2.0.5.Y.1"."""
        return ".".join(self.labels[name] for name in sorted(names))

    def tokens(self) -> dict[str, str]:
        """What $(NAME), $(NAME.label) and $(NAME.name) stand for."""
        out: dict[str, str] = {}
        for name, value in self.values.items():
            out[name] = str(value)
            out[f"{name}.label"] = self.labels[name]
            out[f"{name}.name"] = self.names.get(name, name)
        return out


def combinations(
    document: Document,
    pgen: str | Path | None = None,
    pargs: Sequence[str] = (),
    variables: Mapping[str, Scalar] | None = None,
) -> tuple[Combination, ...]:
    """All combinations in order; empty if the study has no parameters.

    Args:
        document: The spec.
        pgen: A Python file with ``get_custom_generator(env, **kwargs)``; it replaces global.parameters.
        pargs: Its keyword arguments, each "NAME:VALUE".
        variables: The study's variables, which the generator finds in ``env``.

    Raises:
        UsageError: the generator cannot be loaded or fails, or the numbers of values differ.
    """
    if pgen is not None:
        return generated(Path(pgen), pargs, variables or {})
    parameters = document.parameters
    return _combine(
        {name: parameter.values for name, parameter in parameters.items()},
        {name: parameter.label for name, parameter in parameters.items()},
        "global.parameters",
    )


def _combine(
    values: Mapping[str, Sequence[Any]], labels: Mapping[str, str | Sequence[str]], where: str
) -> tuple[Combination, ...]:
    lengths = {name: len(column) for name, column in values.items()}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UsageError(f"{where}: all parameters need the same number of values, but {text}")
    num = next(iter(lengths.values()), 0)
    for name, label in labels.items():
        if label and not isinstance(label, str) and len(label) != num:
            raise UsageError(f"{where}: {name} has {num} values but {len(label)} labels")
    return tuple(
        Combination(
            values={name: _scalar(column[i]) for name, column in values.items()},
            labels={
                name: _label(name, labels.get(name, ""), column[i], i) for name, column in values.items()
            },
        )
        for i in range(num)
    )


def as_block(combos: Sequence[Combination]) -> dict[str, dict[str, list[Any]]]:
    """The combinations as a block global.parameters has them."""
    return {
        name: {
            "values": [combo.values[name] for combo in combos],
            "label": [combo.labels[name] for combo in combos],
        }
        for name in (combos[0].values if combos else ())
    }


def filled(
    combos: Iterable[Combination], variables: Mapping[str, str], of_study: Mapping[str, str]
) -> tuple[Combination, ...]:
    """The combinations with the variables in their values filled in.

    Labels name directories, which are the same in an extension, so these get the variables `of_study`.
    """
    return tuple(
        replace(
            combo,
            values={
                name: substitute(value, variables) if isinstance(value, str) else value
                for name, value in combo.values.items()
            },
            labels={name: substitute(label, of_study) for name, label in combo.labels.items()},
        )
        for combo in combos
    )


def _scalar(value: Any) -> Scalar:
    """The value as one of Python's; a NumPy number keeps the digits that it is printed with."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    plain = value.item() if is_numpy else value
    if isinstance(plain, float) and is_numpy:
        return float(str(value))
    return plain if isinstance(plain, str | int | float | bool) else str(value)


def _label(name: str, label: str | Sequence[str], value: Any, index: int) -> str:
    if label and not isinstance(label, str):
        return str(label[index])
    return (str(label) or f"{name}.{_LABEL_TOKEN}").replace(_LABEL_TOKEN, str(value))


def generated(path: Path, pargs: Sequence[str], variables: Mapping[str, Scalar]) -> tuple[Combination, ...]:
    """The combinations that a generator file makes. Raises UsageError."""
    keywords: dict[str, str] = {}
    for item in pargs:
        name, colon, value = item.partition(":")
        if not colon:
            raise UsageError(f"--pargs {item!r}: write NAME:VALUE")
        keywords[name.strip()] = value.strip()
    function = _load_generator(path)
    try:
        generator = function(_environment(variables), **keywords)
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"{path}: get_custom_generator failed: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(generator, "parameters", None), Mapping) or not hasattr(generator, "labels"):
        raise UsageError(
            f"{path}: get_custom_generator must return Maestro's ParameterGenerator, not {generator!r}"
        )
    names = getattr(generator, "names", None) or {}
    return tuple(
        replace(combo, names=names) for combo in _combine(generator.parameters, generator.labels, str(path))
    )


def _load_generator(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"--pgen {path}: no such file")
    spec = importlib.util.spec_from_file_location("custom_gen", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--pgen {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"--pgen {path}: cannot be loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, "get_custom_generator", None)
    if not callable(function):
        raise UsageError(f"--pgen {path}: defines no function get_custom_generator(env, **kwargs)")
    return function


def _environment(variables: Mapping[str, Scalar]) -> Any:
    """The study's variables as Maestro's StudyEnvironment."""
    from maestrowf.datastructures.core import StudyEnvironment
    from maestrowf.datastructures.environment import Variable

    environment = StudyEnvironment()
    for name, value in variables.items():
        if value != "":
            environment.add(Variable(name, value))
    return environment
