"""`merlin shards`: everything about data sets, one module for each subcommand."""

from __future__ import annotations

import click

from merlin.cli.lazy import LazyGroup

# name -> (module of this package, attribute, help line)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "describe": ("describe", "describe", "Show what a data set holds and which samples are missing."),
    "verify": ("verify", "verify", "Prove that a data set is intact."),
    "query": ("query", "query", "List the samples for which an expression is true, or answer SQL."),
    "collect": ("collect", "collect", "Make a data set again, from what lies on the disk."),
    "export": ("export", "export", "Write a data set for LBANN, WebDataset, MDS, Zarr, Parquet or npz."),
    "import": ("import_", "import_", "Make a data set of HDF5, npz, npy, CSV or Parquet files."),
    "plot": ("plot", "plot", "Draw a data set: a picture, or a page to mail."),
}


@click.group(cls=LazyGroup, package=__name__, lazy_commands=COMMANDS)
def shards() -> None:
    """Describe, verify, plot, collect, export and import data sets.

    PATH is a data set (a directory with manifest.json), or a workspace with one or more of them.
    """
