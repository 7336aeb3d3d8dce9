"""Processes that do the jobs, started afresh: nothing of the command's threads and open files is in them.

They end with the command, however it ends: each holds the reading end of a pipe whose writing end only the command has.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import lru_cache
from multiprocessing.connection import Connection

from merlin.errors import ShardError
from merlin.shards.recollecting.pieces import Done, Job, Maker
from merlin.shards.recollecting.share import Recollection

Submit = Callable[[Job], "Future[Done]"]


@contextmanager
def in_this_process(request: Recollection) -> Iterator[Submit]:
    """Do each job when it is submitted."""
    with closing(Maker(request)) as make:

        def submit(job: Job) -> Future[Done]:
            done: Future[Done] = Future()
            done.set_result(make(job))
            return done

        yield submit


@contextmanager
def in_processes(request: Recollection, num_workers: int) -> Iterator[Submit]:
    """Do jobs in as many processes. Raises ShardError if one of them died."""
    context = multiprocessing.get_context("spawn")
    command_lives, ours = context.Pipe(duplex=False)
    sent = pickle.dumps(request.bare())
    with ProcessPoolExecutor(num_workers, context, _begin, (command_lives,)) as pool:
        try:
            yield lambda job: pool.submit(_do, sent, job)
        except BrokenProcessPool:
            raise ShardError(
                "a process that collected died, perhaps for want of memory; give the command again, and it goes on"
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


@lru_cache(maxsize=1)
def _maker(request: bytes) -> Maker:
    return Maker(pickle.loads(request))


def _do(request: bytes, job: Job) -> Done:
    return _maker(request)(job)
