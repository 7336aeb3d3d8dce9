"""From a data set to a trainer: orders, batches, loaders, normalisation. torch is loaded when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merlin.errors import MissingExtraError

if TYPE_CHECKING:
    from merlin.train.loading.dataset import ShardDataset
    from merlin.train.loading.loader import ShardLoader
    from merlin.train.loading.normalise import Method, Normaliser
    from merlin.train.loading.order import Partition

__all__ = ["Method", "Normaliser", "Partition", "ShardDataset", "ShardLoader"]

_HOMES = {
    "Method": "normalise",
    "Normaliser": "normalise",
    "Partition": "order",
    "ShardDataset": "dataset",
    "ShardLoader": "loader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.loading.{_HOMES[name]}"), name)
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        raise MissingExtraError("torch", "train", "training") from e
