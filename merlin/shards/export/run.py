"""Exporting a data set: file by file, in several processes where it is worth it, going on where it stopped."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from merlin.base.records import to_plain
from merlin.errors import ShardError
from merlin.shards.export.base import ExportedFile, Exporter, ExportOptions, Progress
from merlin.shards.export.directory import ExportDirectory, read_export
from merlin.shards.export.formats import make_exporter
from merlin.shards.processes import fresh_processes

_WORTH_BYTES = 64 << 20


def export(
    path: Path,
    out: Path,
    options: ExportOptions,
    *,
    overwrite: bool = False,
    num_workers: int | None = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Export the data set at `path` into the directory `out` and return what its ``export.json`` says.

    Files that an earlier, killed call with the same options finished are kept; if it finished all of them,
    nothing is done. With `overwrite`, another export in `out` is replaced when the files of the new one are complete.
    `num_workers` processes write, None: as many as are worth it (then a script needs
    ``if __name__ == "__main__"``, as they are started afresh). Memory: two blocks of `view.BLOCK_BYTES` for each
    process, what the format's library needs to compress them, and eight bytes for each sample and ragged field.

    Raises:
        UsageError: the format cannot hold a field, or `out` holds something else.
        ShardError: the data set is damaged, or a written file does not hold what it should.
        MissingExtraError: the format's library is not installed.
    """
    exporter = make_exporter(path, options)
    write = partial(_write_files, exporter, num_workers=num_workers, progress=progress)
    with ExportDirectory(out, _request(exporter)) as directory:
        if overwrite and directory.is_finished():
            with directory.replacement() as replacement:
                write(replacement)
        elif overwrite:
            directory.remove_unfinished()
        files, is_complete = write(directory)
        if is_complete:
            return read_export(out) or {}
        return directory.end(files, exporter.finish(out, files), _about(exporter))


def _write_files(
    exporter: Exporter,
    directory: ExportDirectory,
    *,
    num_workers: int | None,
    progress: Progress | None,
) -> tuple[list[ExportedFile], bool]:
    """Write the files that are not there; returns all of them, and whether the whole export was there already."""
    out = directory.directory
    files, is_complete = directory.begin(partial(exporter.is_present, out))
    if not is_complete:
        exporter.prepare(out)
        num_workers = _choose_workers(exporter, num_workers)
        for file in _write_missing(out, exporter, files, num_workers, progress):
            directory.add(file)
            files.append(file)
    files.sort(key=lambda file: file.lo)
    _require_all(exporter, files)
    return files, is_complete


def _request(exporter: Exporter) -> dict[str, Any]:
    """What makes two exports the same."""
    return {
        "content_digest": exporter.view.ens.manifest.content_digest,
        **to_plain(exporter.options),
        "samples_per_file": exporter.step,
        "compression": exporter.compression,
    }


def _about(exporter: Exporter) -> dict[str, Any]:
    data = exporter.view.ens.manifest
    columns = [column.to_json() for column in exporter.view.columns]
    return {"study": data.study, "aggregate": data.aggregate, "columns": columns}


def _write_missing(
    out: Path,
    exporter: Exporter,
    have: list[ExportedFile],
    num_workers: int,
    progress: Progress | None,
) -> Iterator[ExportedFile]:
    there = {part.lo for part in have}
    missing = [k for k in range(exporter.num_files) if exporter.range_of(k)[0] not in there]
    if min(num_workers, len(missing)) <= 1:
        written: Iterator[ExportedFile] = (exporter.write_part(out, number) for number in missing)
    else:
        written = _write_in_processes(out, exporter, missing, num_workers)
    done = sum(part.num_samples for part in have)
    if progress:
        progress(done, exporter.view.num)
    for part in written:
        yield part
        done += part.num_samples
        if progress:
            progress(done, exporter.view.num)


def _write_in_processes(
    out: Path, exporter: Exporter, numbers: Sequence[int], num_workers: int
) -> Iterator[ExportedFile]:
    """Export the files of these numbers; yields them as they get finished.

    Raises what writing one of them raised, and ShardError if a process died.
    """
    with fresh_processes(min(num_workers, len(numbers)), "a process that wrote files") as pool:
        path, options = exporter.view.ens.path, exporter.options
        for job in as_completed([pool.submit(_write_one, path, out, options, n) for n in numbers]):
            yield job.result()


_exporter = lru_cache(maxsize=1)(make_exporter)


def _write_one(path: Path, out: Path, options: ExportOptions, number: int) -> ExportedFile:
    try:
        return _exporter(path, options).write_part(out, number)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - of somebody's class, it has to reach the command in another one
            raise ShardError(f"{type(error).__name__}: {error}") from None
        raise


def _choose_workers(exporter: Exporter, num_workers: int | None) -> int:
    """All cores where there is enough to write; starting a process takes as long as writing some megabytes."""
    if num_workers is not None:
        return num_workers
    row_bytes = sum(column.item_bytes for column in exporter.view.columns)
    return len(os.sched_getaffinity(0)) if exporter.view.num * row_bytes > _WORTH_BYTES else 1


def _require_all(exporter: Exporter, parts: list[ExportedFile]) -> None:
    expected = [exporter.range_of(k) for k in range(exporter.num_files)]
    if [(part.lo, part.hi) for part in parts] != expected:
        raise ShardError(
            f"the files do not hold the {exporter.view.num:,} samples; start anew with --overwrite"
        )
