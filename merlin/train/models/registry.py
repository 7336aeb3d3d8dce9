"""Models by name: those of this package, and users' own as "module:callable".

Weights are only right with the code that made them, so files with weights say which code that was. Files of a run may
be anybody's, so code that they name is imported only if the user agrees.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from merlin.base.document.field_types import Block
from merlin.base.document.findings import allowed
from merlin.errors import CheckpointError, TrainingError, UsageError
from merlin.train.models.base import Shapes, Trainee
from merlin.workspace.prepare import code_version

# name -> "module:class"; the class has an `Options` and is called with (shapes, options)
MODELS: dict[str, str] = {
    "regressor": "merlin.train.models.regressor:Regressor",
    "classifier": "merlin.train.models.classifier:Classifier",
    "latent_surrogate": "merlin.train.models.latent_surrogate:LatentSurrogate",
    "icf_autoencoder": "merlin.train.models.icf_autoencoder:IcfAutoencoder",
    "icf_surrogate": "merlin.train.models.icf_surrogate:IcfSurrogate",
}

# what a user's model may raise
MODEL_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)


class ModelCode(Struct, frozen=True):
    """How a model is made; `options` is None for a user's callable, which takes them as keywords."""

    name: str
    make: Callable[..., Trainee]
    options: type[Block] | None

    def keywords(self) -> set[str] | None:
        """The options that a user's callable knows; None if it takes any."""
        parameters = list(inspect.signature(self.make).parameters.values())[1:]
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return None
        return {p.name for p in parameters}

    def capacity(self, options: Mapping[str, Any]) -> float | None:
        """The factor of all widths that these options give; None for a model without an option of that name."""
        known: Mapping[str, Any] = (
            inspect.signature(self.make).parameters if self.options is None else self.options.model_fields
        )
        if "capacity" not in known:
            return None
        found = options.get("capacity", known["capacity"].default)
        return float(found) if isinstance(found, int | float) else 1.0


def find(name: str) -> ModelCode:
    """The model of this name; UsageError if there is none, or it cannot be imported."""
    target = MODELS.get(name, name)
    module_name, colon, attribute = target.partition(":")
    if not colon:
        raise UsageError(
            f"there is no model {name!r}; {allowed(name, MODELS, 'there are')}, "
            'and your own as "module:callable"'
        )
    if name not in MODELS and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: a user's module lies where the user is
    try:
        made = getattr(import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise TrainingError(f"the model {name} cannot be imported: {error}") from error
        raise UsageError(
            f"the model {name}: there is no module {module_name!r} here or on PYTHONPATH"
        ) from error
    except AttributeError as error:
        raise UsageError(f"the model {name}: {module_name} has no {attribute!r}") from error
    options = getattr(made, "Options", None)
    return ModelCode(name, made, options if name in MODELS else None)


def version_of(name: str) -> int | str | None:
    """The version of a model's code: an attribute of its class or function, if it has one. Raises as `find`."""
    version = getattr(find(name).make, "version", None)
    return version if isinstance(version, int | str) else None


def build(name: str, shapes: Shapes, options: Mapping[str, Any]) -> Trainee:
    """A model for data of these shapes. Raises UsageError for options it does not know."""
    model = find(name)
    if model.options is not None:
        return model.make(shapes, model.options.model_validate(dict(options)))
    return model.make(shapes, **options)


def resolved(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options, completed by what they refer to, such as the autoencoder of a surrogate; others as they are.

    Raises UsageError or CheckpointError if that is not there.
    """
    model = find(name)
    if model.options is None or not hasattr(model.options, "resolved"):
        return dict(options)
    full: dict[str, Any] = model.options.model_validate(dict(options)).resolved().model_dump(mode="json")
    return full


def code_of(name: str) -> dict[str, Any]:
    """The model of this name, the version of its code (None if it says none), and the version of Merlin."""
    return {"name": name, "version": version_of(name), "merlin": code_version()}


def require_code(name: str, recorded: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError if weights of `where`, made by the `recorded` code, are not for the model of this name.

    Users' models are compared only if both say a version.
    """
    if recorded.get("name", name) != name:
        raise CheckpointError(f"{where} is of the model {recorded.get('name')}, and not of {name}")
    was, now = recorded.get("version"), version_of(name)
    if not isinstance(was, int | str | None):
        raise CheckpointError(f"{where} is damaged: the version of its model is a {type(was).__name__}")
    if was == now or (name not in MODELS and None in (was, now)):
        return
    which = "without a version" if was is None else f"of version {was}"
    maker = (
        f"Merlin {recorded.get('merlin') or 'that made it'}"
        if name in MODELS
        else f"the code of {name} {which}"
    )
    raise CheckpointError(
        f"{where} is of the model {name} {which}, and this is version {now}: with other code its weights are wrong\n"
        f"  Train it again, or use {maker}."
    )


def require_consent(name: str, where: str, *, trust_code: bool) -> None:
    """Raise UsageError if a file, at `where`, names a model that is not Merlin's own, and the user did not agree."""
    if trust_code or name in MODELS or ":" not in name:  # a name without a colon is never imported
        return
    raise UsageError(
        f"{where}: the model {name} is code from outside of Merlin, and nothing of it was run\n"
        "  Whoever wrote this file chose what that name calls. If you trust them, and know what it means on this "
        "machine, add --trust-code; in Python: trust_code=True."
    )
