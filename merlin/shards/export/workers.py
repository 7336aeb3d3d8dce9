"""Processes that write an export's files: each is told one number at a time, and ends when nobody is there to tell.

Started afresh rather than forked, so that nothing of the command's threads and open files is in them.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from merlin.errors import ShardError
from merlin.shards.export.base import ExportedFile

Write = Callable[[int], ExportedFile]


def write_in_processes(
    make_writer: Callable[..., Write], arguments: tuple[Any, ...], numbers: Sequence[int], num_workers: int
) -> Iterator[ExportedFile]:
    """The files of these numbers as they get finished; `make_writer(*arguments)` is called in each process.

    Raises what writing one of them raised, and ShardError if a process died.
    """
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, Any] = {}
    try:
        for _ in range(min(num_workers, len(numbers))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make_writer, arguments), daemon=True)
            process.start()
            theirs.close()
            processes[ours] = process
        yield from _hand_out(processes, iter(numbers), len(numbers))
    except BaseException:
        for process in processes.values():
            process.terminate()
        raise
    finally:
        for connection, process in processes.items():
            connection.close()
            process.join()


def _hand_out(processes: dict[Connection, Any], numbers: Iterator[int], num: int) -> Iterator[ExportedFile]:
    for connection in processes:
        connection.send(next(numbers))
    for _ in range(num):
        connection = _first_ready(processes)
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            processes[connection].join()
            code = processes[connection].exitcode
            raise ShardError(
                f"a process that wrote files died (exit code {code}; -9 means killed, perhaps for want of memory); "
                "start the export again, and it goes on"
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        for number in numbers:
            connection.send(number)
            break
        yield answer


def _first_ready(processes: dict[Connection, Any]) -> Connection:
    ready = wait(list(processes))[0]
    assert isinstance(ready, Connection)
    return ready


def _serve(connection: Connection, make_writer: Callable[..., Write], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command says when to stop
    with suppress(EOFError, OSError):
        try:
            write = make_writer(*arguments)
            while True:
                connection.send(write(connection.recv()))
        except EOFError:
            raise
        except Exception as e:  # noqa: BLE001 - it is raised again in the command
            connection.send(_portable(e))


def _portable(error: Exception) -> Exception:
    """The error, or one that can be sent in its place."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001
        return ShardError(f"{type(error).__name__}: {error}")
    return error
