"""Writes a file again and again with less room than it needs, in processes that live for one attempt.

``python full_disk.py DIRECTORY`` prints, as JSON, a list of [room, exit status, errno, files that are left] for each
kind of file. No file may be larger than the room, so that a write fails in its middle, as on a full disk.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from reading_data import make_reading_study, ragged_of

from merlin.shards.export.columns_file import OutColumn, writing_columns
from merlin.shards.format.segments import Ragged
from merlin.shards.writing.bundle import Contribution, write_bundle


@dataclass(frozen=True)
class Case:
    directory: Path  # where files appear
    write: Callable[[], object]

    def files(self) -> list[Path]:
        return [path for path in self.directory.iterdir() if path.is_file()]


def bundle(directory: Path, items: int) -> Case:
    columns = {
        "fields/series": np.ones((200, items)),
        "fields/text": np.array(["x" * 50] * 200, object),
        "fields/track": Ragged.of(ragged_of(np.arange(200))["track"], np.dtype(np.float32), (3,)),
    }
    content = Contribution(np.arange(200), np.arange(200) % 9 > 0, columns, {"energy > 0": np.arange(3)})
    return Case(directory, lambda: write_bundle(directory / "file.h5", content, {"attempt": 1}))


def shard(directory: Path, compression: str) -> Case:
    study = make_reading_study(directory / "w", compression=compression)
    return Case(study.directory, lambda: study.write_shard(1))


def columns(directory: Path) -> Case:
    wanted = [OutColumn("a", np.dtype(float), (1000,)), OutColumn("b", np.dtype(np.int64))]

    def write() -> None:
        with writing_columns(directory / "file.h5", wanted, 500) as write_block:
            for lo in range(0, 500, 50):
                write_block(lo, {"a": np.ones((50, 1000)), "b": np.arange(50)})

    return Case(directory, write)


CASES: dict[str, Callable[[Path], Case]] = {
    "small bundle": lambda directory: bundle(directory, 3),
    "large bundle": lambda directory: bundle(directory, 5000),
    **{f"{name} shard": partial(shard, compression=name) for name in ("none", "gzip", "zstd")},
    "columns": columns,
}


def attempt(case: Case, room: int) -> tuple[int, int, list[str]]:
    """Exit status of a process that wrote, errno that it saw (0: none), and the files that it left."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        seen = 0
        try:
            case.write()
        except OSError as error:
            seen = error.errno or -1
        os.write(writing, bytes([seen]))
        sys.exit()  # as any process does, with everything that the library has to do then
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = os.read(reading, 1)
    os.close(reading)
    left = case.files()
    for path in left:
        path.unlink()
    return status, seen[0] if seen else -1, [path.name for path in left]


def attempts(case: Case) -> list[tuple[int, int, int, list[str]]]:
    """An attempt for each of many rooms."""
    before = set(case.files())
    case.write()
    written = set(case.files()) - before
    size = max(path.stat().st_size for path in written)
    for path in written:
        path.unlink()
    gc.freeze()  # what is loaded is not looked at, and so copied, again and again
    rooms = {0, 100, size - 1, *range(500, size, 1 + size // 6), *range(500, min(size, 20_000), 4000)}
    return [(room, *attempt(case, room)) for room in sorted(rooms)]


def main() -> None:
    found = {}
    for kind, make in CASES.items():
        directory = Path(sys.argv[1], kind)
        directory.mkdir()
        found[kind] = attempts(make(directory))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
