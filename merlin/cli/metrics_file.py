"""Prints metrics for Prometheus, or keeps a file of them up to date."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from merlin.base.files import write_text
from merlin.cli.output import remark
from merlin.cli.study_places import StudyPlaces
from merlin.errors import MissingExtraError, UsageError

SUFFIX = ".prom"  # node_exporter reads no other files
MODE = 0o644  # for node_exporter, which is another user


def print_metrics(places: StudyPlaces) -> None:
    sys.stdout.write(_reader(places)())


def write_metrics(places: StudyPlaces, path: Path, every_s: float | None) -> None:
    """Write the file, once or until Ctrl-C; a reader sees all of it or the one before."""
    if path.suffix != SUFFIX:
        raise UsageError(f"--textfile writes a file for node_exporter, which ends in {SUFFIX}: {path}")
    read = _reader(places)
    write_text(path, read(), mode=MODE)
    if every_s is None:
        return
    remark(f"writes {path} every {every_s:g} s; Ctrl-C ends it")
    due = time.monotonic() + every_s
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - every_s) + every_s  # what was missed is not made up for
        try:
            write_text(path, read(), mode=MODE)
        except OSError as error:
            remark(f"merlin: warning: {path} could not be written: {error.strerror}; tries again")


def _reader(places: StudyPlaces) -> Callable[[], str]:
    """Reads the metrics. Raises MissingExtraError without prometheus_client."""
    try:
        from merlin.dashboard.gathering import Gatherer
        from merlin.dashboard.metrics import exposition
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "prometheus-client", "dashboard", "merlin metrics") from error
    gatherer = Gatherer(places.roots, places.named)
    return lambda: exposition(gatherer.measure()).decode()
