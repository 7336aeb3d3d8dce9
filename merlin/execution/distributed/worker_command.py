"""The command of a Celery worker: ``python -m merlin.celery -A merlin worker …``.

It does what ``celery -A merlin worker …`` does, and takes the same options. If these are only options that Merlin
itself uses, it loads half of what Celery's command line loads. It also starts the server of worker processes, before
this process has threads.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from msgspec import Struct

from merlin.config.redis_library import load_redis
from merlin.errors import MerlinError
from merlin.execution.distributed.worker_pool import num_threads
from merlin.execution.fork_server import ForkServers

OURS = ("-A", "merlin", "worker")  # what the command begins with
_OPTIONS = {"-n": "name", "-Q": "queues", "--pool": "pool", "--concurrency": "concurrency", "-l": "level"}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")
# variables that Celery's command line reads; those that begin with CELERY_ stand for any of its options
_OF_CELERY = ("BROKER_URL", "RESULT_BACKEND", "LOADER", "CONFIG_MODULE", "NO_COLOR")


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The options of a worker that Merlin starts."""

    name: str
    queues: str
    concurrency: int
    level: str


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Run a worker to its end, and exit with its code."""
    gc.set_threshold(50_000, 20, 50)  # modules make many objects that stay; looking at them again takes time
    options = plain_options(argv, environment)
    if options is None:
        from celery.__main__ import main as celery

        sys.exit(celery())  # it reads `sys.argv`
    try:
        _run(options, ForkServers(num_threads(options.concurrency), may_copy=True))
    except MerlinError as error:  # no configuration, a key that others can read
        raise SystemExit(f"merlin: error: {error}") from None


def plain_options(argv: Sequence[str], environment: Mapping[str, str]) -> WorkerOptions | None:
    """The options, or None if Celery has to read them."""
    if any(name.startswith("CELERY_") or name in _OF_CELERY for name in environment):
        return None
    start, words = tuple(argv[: len(OURS)]), argv[len(OURS) :]
    found = {_OPTIONS.get(option, ""): value for option, value in zip(words[::2], words[1::2], strict=False)}
    if start != OURS or len(words) != 2 * len(_OPTIONS) or set(found) != set(_OPTIONS.values()):
        return None
    concurrency, level = found["concurrency"], found["level"].upper()
    if (
        found["pool"] != "threads"
        or level not in _LEVELS
        or not concurrency.isdecimal()
        or not int(concurrency)
    ):
        return None
    return WorkerOptions(
        name=found["name"], queues=found["queues"], concurrency=int(concurrency), level=level
    )


def _run(options: WorkerOptions, servers: ForkServers) -> NoReturn:
    """Run the worker as `celery.bin.worker` would with these options."""
    load_redis()
    from celery.concurrency.thread import TaskPool
    from celery.utils.log import mlevel
    from celery.utils.nodenames import default_nodename, host_format

    from merlin.execution.distributed.app import WorkerApp

    worker = WorkerApp(servers).celery.Worker(
        hostname=host_format(default_nodename(options.name)),
        pool_cls=TaskPool,
        loglevel=mlevel(options.level),
        concurrency=options.concurrency,
        queues=options.queues.split(","),
        optimization="default",
        no_color=False,
        quiet=False,
    )
    worker.start()
    logging.shutdown()
    sys.stdout.flush()
    servers.close()
    os._exit(worker.exitcode or 0)  # a normal exit of Python takes longer than the rest of the shutdown
