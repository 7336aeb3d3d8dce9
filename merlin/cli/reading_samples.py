"""Shows how far the reading of long samples files is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from merlin.cli.display import late_progress
from merlin.workspace.reading_progress import reading_watched


@contextmanager
def reading_shown() -> Iterator[None]:
    """Say on stderr how far the samples that are read in the block are, if that takes some seconds."""
    with late_progress("reading samples", "rows") as report, reading_watched(report):
        yield
