"""How jobs are done: in this process, or in several."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import lru_cache

from merlin.shards.processes import fresh_processes
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
    sent = pickle.dumps(request.bare())
    with fresh_processes(num_workers, "a process that collected") as pool:
        yield lambda job: pool.submit(_do, sent, job)


@lru_cache(maxsize=1)
def _maker(request: bytes) -> Maker:
    return Maker(pickle.loads(request))


def _do(request: bytes, job: Job) -> Done:
    return _maker(request)(job)
