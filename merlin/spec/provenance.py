"""Specs written back as YAML: the partial one (overrides, defaults) and the expanded one (all filled in)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merlin.base.document.scalars import Plain
from merlin.base.document.tokens import substitute
from merlin.base.document.tree import Entry, to_data
from merlin.base.yaml_text import yaml_text
from merlin.spec.defaults import fill
from merlin.spec.expand import is_of_maestro

_ORDER = ("description", "batch", "env", "study", "global.parameters", "merlin", "user")
_CLOCK_KEYS = frozenset({"walltime", "timeout", "retry_delay", "name"})


def dump(
    tree: Entry, values: Mapping[str, str] | None = None, parameters: Mapping[str, Any] | None = None
) -> str:
    """The tree with defaults as YAML; `values` are filled in last, in keys too.

    `parameters` replace the block global.parameters.
    """
    data = fill(to_data(tree))
    if parameters is not None:
        data["global.parameters"] = parameters
    if is_of_maestro(tree):
        del data["merlin"]  # with the block, $(OUTPUT_PATH) would mean something else
    ordered = {key: data[key] for key in _ORDER if key in data}
    ordered.update({key: value for key, value in data.items() if key not in ordered})
    written = _writable(ordered, values or {})
    if values and "SPECROOT" in values:
        _root_files(written["study"], values["SPECROOT"])
    return yaml_text(written)


def _root_files(steps: Any, root: str) -> None:
    """Put `root` before relative paths of `files`, because the copy lies elsewhere than the spec."""
    runs = [step.get("run") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    for run in runs:
        if isinstance(run, dict) and "files" in run:
            files = run["files"] if isinstance(run["files"], list) else [run["files"]]
            run["files"] = [
                text if str(text).startswith("$(") else str(Path(root) / str(text)) for text in files
            ]


def _writable(value: Any, values: Mapping[str, str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {substitute(name, values): _writable(item, values, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_writable(item, values) for item in value]
    if isinstance(value, Plain):
        return str.__str__(value) if key in _CLOCK_KEYS else value.typed
    if isinstance(value, str):
        return substitute(value, values)
    return value
