"""Merlin: YAML study specs become ensembles, ensembles become verified data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from merlin.shards.ensemble import Ensemble
    from merlin.train.results.surrogate import Surrogate

__version__ = "0.1.0"
__all__ = ["__version__", "load_surrogate", "open_shards"]


def open_shards(path: Any, **options: Any) -> Ensemble:
    """Open a finished data set (a directory with ``manifest.json``) for reading; see `merlin.shards.ensemble`."""
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
