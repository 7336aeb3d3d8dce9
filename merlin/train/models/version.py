"""Weights are only right with the code that made them, so files with weights say which code that was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from merlin.errors import CheckpointError
from merlin.train.models.registry import MODELS, version_of
from merlin.workspace.prepare import code_version


def code_of(name: str) -> dict[str, Any]:
    """The model of this name, the version of its code (None if it tells none), and the version of Merlin."""
    return {"name": name, "version": version_of(name), "merlin": code_version()}


def require_code(name: str, recorded: Mapping[str, Any], where: str) -> None:
    """CheckpointError if weights of `where`, of which `recorded` tells the code, are not for the model of this name.

    Users' models are compared only if both tell a version.
    """
    if recorded.get("name", name) != name:
        raise CheckpointError(f"{where} is of the model {recorded.get('name')}, and not of {name}")
    was, now = recorded.get("version"), version_of(name)
    if not isinstance(was, int | str | None):
        raise CheckpointError(f"{where} is damaged: the version of its model is a {type(was).__name__}")
    if was == now or (name not in MODELS and None in (was, now)):
        return
    told = "without a version" if was is None else f"of version {was}"
    maker = (
        f"Merlin {recorded.get('merlin') or 'that made it'}"
        if name in MODELS
        else f"the code of {name} {told}"
    )
    raise CheckpointError(
        f"{where} is of the model {name} {told}, and this is version {now}: with other code its weights are wrong\n"
        f"  Train it again, or use {maker}."
    )
