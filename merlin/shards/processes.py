"""Processes that do jobs, started afresh: nothing of the command's threads and open files is in them.

They end with the command, however it ends: each holds the reading end of a pipe whose writing end only the command has.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection

from merlin.errors import ShardError


@contextmanager
def fresh_processes(num: int, what_died: str) -> Iterator[ProcessPoolExecutor]:
    """A pool of `num` processes; jobs that have not begun are dropped at the end.

    Raises ShardError, which begins with `what_died`, if one of them died.
    """
    context = multiprocessing.get_context("spawn")
    command_lives, ours = context.Pipe(duplex=False)
    with ProcessPoolExecutor(num, context, _begin, (command_lives,)) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            raise ShardError(
                f"{what_died} died, perhaps for want of memory; give the command again, and it goes on"
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
