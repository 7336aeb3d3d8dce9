"""Processes that write an export's files, started afresh: nothing of the command's threads and open files is in them.

They end with the command, however it ends: each holds the reading end of a pipe whose writing end only the command has.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path

from merlin.errors import ShardError
from merlin.shards.export.base import ExportedFile, ExportOptions
from merlin.shards.export.formats import make_exporter


def write_in_processes(
    path: Path, out: Path, options: ExportOptions, numbers: Sequence[int], num_workers: int
) -> Iterator[ExportedFile]:
    """Export the files of these numbers; yields them as they get finished.

    Raises what writing one of them raised, and ShardError if a process died.
    """
    context = multiprocessing.get_context("spawn")
    command_lives, ours = context.Pipe(duplex=False)
    num_workers = min(num_workers, len(numbers))
    with ProcessPoolExecutor(num_workers, context, _begin, (command_lives,)) as pool:
        try:
            for job in as_completed([pool.submit(_write, path, out, options, n) for n in numbers]):
                yield job.result()
        except BrokenProcessPool:
            raise ShardError(
                "a process that wrote files died, perhaps for want of memory; start the export again, and it goes on"
            ) from None
        finally:
            ours.close()
            pool.shutdown(cancel_futures=True)
            command_lives.close()


def _begin(command_lives: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command says when to stop
    threading.Thread(target=_end_with_command, args=(command_lives,), daemon=True).start()


def _end_with_command(command_lives: Connection) -> None:
    command_lives.poll(None)
    os._exit(1)


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
