"""An export's files, written in several processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from functools import lru_cache
from pathlib import Path

from merlin.errors import ShardError
from merlin.shards.export.base import ExportedFile, ExportOptions
from merlin.shards.export.formats import make_exporter
from merlin.shards.processes import fresh_processes


def write_in_processes(
    path: Path, out: Path, options: ExportOptions, numbers: Sequence[int], num_workers: int
) -> Iterator[ExportedFile]:
    """Export the files of these numbers; yields them as they get finished.

    Raises what writing one of them raised, and ShardError if a process died.
    """
    with fresh_processes(min(num_workers, len(numbers)), "a process that wrote files") as pool:
        for job in as_completed([pool.submit(_write, path, out, options, n) for n in numbers]):
            yield job.result()


_exporter = lru_cache(maxsize=1)(make_exporter)


def _write(path: Path, out: Path, options: ExportOptions, number: int) -> ExportedFile:
    try:
        return _exporter(path, options).write_part(out, number)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - of somebody's class, it has to reach the command in another one
            raise ShardError(f"{type(error).__name__}: {error}") from None
        raise
