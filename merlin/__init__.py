"""Merlin: YAML study specs become ensembles, ensembles become verified data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from merlin.shards.reading.reader import Ensemble

__version__ = "0.1.0"
__all__ = ["__version__", "open_shards"]


def open_shards(path: Any, **options: Any) -> Ensemble:
    """Open a finished data set (a directory with ``manifest.json``) for reading; see `merlin.shards.reading.reader`."""
    from merlin.shards.reading.reader import open_shards as _open

    return _open(path, **options)
