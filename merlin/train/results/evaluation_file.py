"""`evaluation.json`: what an evaluation has measured, in the run's directory. Reading it needs no torch."""

from __future__ import annotations

from math import nan
from typing import Any

from merlin.base.records import FileFormat
from merlin.errors import TrainingError
from merlin.train.run_paths import RunPaths, read_facts

NAME = "evaluation.json"
FORMAT = FileFormat("merlin-evaluation", 1)
_MEASURED = ("scalars", "images", "classes", "inputs", "metrics", "value")


def read_evaluation(run: RunPaths) -> dict[str, Any] | None:
    """The facts of the run's evaluation, None if it was not evaluated. Raises TrainingError if they are damaged."""
    path = run.path / NAME
    facts = read_facts(path)
    if facts is None:
        return None
    if wrong := FORMAT.mismatch(facts):
        raise TrainingError(f"{path}: {wrong}; evaluate the run again")
    return {key: _with_nan(value) if key in _MEASURED else value for key, value in facts.items()}


def _with_nan(value: Any) -> Any:
    """Replace null by NaN: JSON has null for numbers that were not finite."""
    if isinstance(value, dict):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return nan if value is None else value
