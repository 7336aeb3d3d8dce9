"""Merlin: YAML study specs become ensembles, ensembles become verified data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from merlin.api.run import run
    from merlin.api.study import Study
    from merlin.shards.ensemble import Ensemble
    from merlin.train.results.surrogate import Surrogate

__version__ = "0.1.0"
__all__ = ["Study", "__version__", "load_surrogate", "open_shards", "run"]

_HOMES = {"run": "merlin.api.run", "Study": "merlin.api.study"}  # of what is loaded when it is used


def open_shards(path: Any, **options: Any) -> Ensemble:
    """Open a finished data set (a directory with ``manifest.json``), or the only one in a workspace, for reading; see
    `merlin.shards.ensemble`."""
    from merlin.shards.ensemble import open_shards as _open

    return _open(path, **options)


def load_surrogate(path: Any, **options: Any) -> Surrogate:
    """Load the best model of a training run, to predict with; see `merlin.train.results.surrogate`."""
    try:
        from merlin.train.results.surrogate import load_surrogate as _load
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from merlin.errors import MissingExtraError

        raise MissingExtraError("torch", "train", "a surrogate") from error
    return _load(path, **options)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
