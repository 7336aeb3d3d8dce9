"""The formats that data sets are exported to. A new format is a file with an `Exporter` and a line here.

The command line takes its choices from `FORMATS`, so nothing heavy is imported before a format is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.shards.export.base import Exporter, ExportOptions

# name -> (module beside this one, class)
FORMATS: dict[str, tuple[str, str]] = {
    "lbann": ("lbann", "LbannExporter"),
    "webdataset": ("webdataset", "WebDatasetExporter"),
    "mds": ("mds", "MdsExporter"),
    "zarr": ("zarr", "ZarrExporter"),
    "parquet": ("parquet", "ParquetExporter"),
    "npz": ("npz", "NpzExporter"),
}


def exporter_of(format: str) -> type[Exporter]:
    """The class that writes a format. Raises UsageError if there is none."""
    if format not in FORMATS:
        raise UsageError(f"unknown format '{format}'; there are: {', '.join(FORMATS)}")
    module, name = FORMATS[format]
    found: type[Exporter] = getattr(import_module(f"merlin.shards.export.{module}"), name)
    return found


def make_exporter(path: Path, options: ExportOptions) -> Exporter:
    """The exporter of a format, opened on a data set; raises UsageError if it cannot hold it."""
    from merlin.shards.ensemble import open_shards
    from merlin.shards.export.view import View

    kind = exporter_of(options.format)
    exporter = kind(View(open_shards(path), options.fields, options.split), options)
    exporter.check()
    return exporter
