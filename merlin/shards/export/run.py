"""Exporting a data set: file by file, in several processes where it is worth it, going on where it stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from merlin.errors import ShardError, UsageError
from merlin.shards.export.base import FORMATS, Exporter, Options, Part, Progress
from merlin.shards.export.state import State, read_export
from merlin.shards.export.view import View
from merlin.shards.export.workers import write_in_processes
from merlin.shards.reading.reader import open_shards

_WORTH_BYTES = 64 << 20


def export(
    path: Path,
    out: Path,
    options: Options,
    *,
    overwrite: bool = False,
    num_workers: int | None = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Export the data set at `path` into the directory `out` and return what its ``export.json`` says.

    Files that an earlier, killed call with the same options finished are kept; if it finished all of them,
    nothing is done. `num_workers` processes write, None: as many as are worth it (then a script needs
    ``if __name__ == "__main__"``, as they are started afresh). Memory: two blocks of `view.BLOCK_BYTES` for each
    process, what the format's library needs to compress them, and eight bytes for each sample and ragged field.

    Raises:
        UsageError: the format cannot hold a field, or `out` holds something else.
        ShardError: the data set is damaged, or a written file does not hold what it should.
        MissingExtraError: the format's library is not installed.
    """
    exporter = make_exporter(path, options)
    state = State(out, _request(exporter))
    try:
        parts, complete = state.begin(partial(exporter.is_present, out), overwrite=overwrite)
        if not complete:
            exporter.prepare(out)
            workers = _choose_workers(exporter, num_workers)
            for part in _write_missing(path, out, exporter, parts, workers, progress):
                state.add(part)
                parts.append(part)
        parts.sort(key=lambda part: part.lo)
        _require_all(exporter, parts)
        if complete:
            return read_export(out) or {}
        return state.end(parts, exporter.finish(out, parts), _about(exporter))
    finally:
        state.close()


def _request(exporter: Exporter) -> dict[str, Any]:
    """What makes two exports the same."""
    return {
        "content_digest": exporter.view.ens.manifest.content_digest,
        **exporter.options.to_json(),
        "samples_per_file": exporter.step,
        "compression": exporter.compression,
    }


def _about(exporter: Exporter) -> dict[str, Any]:
    data = exporter.view.ens.manifest
    columns = [column.to_json() for column in exporter.view.columns]
    return {"study": data.study, "aggregate": data.aggregate, "columns": columns}


def make_exporter(path: Path, options: Options) -> Exporter:
    """The exporter of a format, opened on a data set; raises UsageError if it cannot hold it."""
    if options.format not in FORMATS:
        raise UsageError(f"unknown format '{options.format}'; there are: {', '.join(FORMATS)}")
    module = import_module(f"merlin.shards.export.{options.format}")
    view = View(open_shards(path), options.fields, options.split)
    exporter = module.Exporter(view, options)
    assert isinstance(exporter, Exporter)
    exporter.check()
    return exporter


def _write_missing(
    path: Path, out: Path, exporter: Exporter, have: list[Part], num_workers: int, progress: Progress | None
) -> Iterator[Part]:
    there = {part.lo for part in have}
    missing = [k for k in range(exporter.num_files) if exporter.range_of(k)[0] not in there]
    if min(num_workers, len(missing)) <= 1:
        written: Iterator[Part] = (exporter.write_part(out, number) for number in missing)
    else:
        written = write_in_processes(make_writer, (path, out, exporter.options), missing, num_workers)
    done = sum(part.num_samples for part in have)
    if progress:
        progress(done, exporter.view.num)
    for part in written:
        yield part
        done += part.num_samples
        if progress:
            progress(done, exporter.view.num)


def make_writer(path: Path, out: Path, options: Options) -> Callable[[int], Part]:
    """What a process of its own writes files with."""
    return partial(make_exporter(path, options).write_part, out)


def _choose_workers(exporter: Exporter, num_workers: int | None) -> int:
    """All cores where there is enough to write; starting a process takes as long as writing some megabytes."""
    if num_workers is not None:
        return num_workers
    row_bytes = sum(column.item_bytes for column in exporter.view.columns)
    return len(os.sched_getaffinity(0)) if exporter.view.num * row_bytes > _WORTH_BYTES else 1


def _require_all(exporter: Exporter, parts: list[Part]) -> None:
    expected = [exporter.range_of(k) for k in range(exporter.num_files)]
    if [(part.lo, part.hi) for part in parts] != expected:
        raise ShardError(
            f"the files do not hold the {exporter.view.num:,} samples; start anew with --overwrite"
        )
