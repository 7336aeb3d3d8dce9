"""The formats that data sets are exported to. A new format is a file with an `Exporter` and a line here."""

from __future__ import annotations

from pathlib import Path

from merlin.errors import UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.export.base import Exporter, ExportOptions
from merlin.shards.export.lbann import LbannExporter
from merlin.shards.export.mds import MdsExporter
from merlin.shards.export.npz import NpzExporter
from merlin.shards.export.parquet import ParquetExporter
from merlin.shards.export.view import View
from merlin.shards.export.webdataset import WebDatasetExporter
from merlin.shards.export.zarr import ZarrExporter

_EXPORTERS: tuple[type[Exporter], ...] = (
    LbannExporter,
    WebDatasetExporter,
    MdsExporter,
    ZarrExporter,
    ParquetExporter,
    NpzExporter,
)
FORMATS = {exporter.format: exporter for exporter in _EXPORTERS}


def make_exporter(path: Path, options: ExportOptions) -> Exporter:
    """The exporter of a format, opened on a data set; raises UsageError if it cannot hold it."""
    if options.format not in FORMATS:
        raise UsageError(f"unknown format '{options.format}'; there are: {', '.join(FORMATS)}")
    exporter = FORMATS[options.format](View(open_shards(path), options.fields, options.split), options)
    exporter.check()
    return exporter
