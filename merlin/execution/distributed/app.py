"""The Celery worker: ``celery -A merlin worker -Q …``, through `merlin/celery.py`.

Celery carries sealed messages to threads of the worker; what a message leads to is the engine's.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from celery import signals

from merlin.config.load import require_config
from merlin.execution.distributed import names
from merlin.execution.distributed.app_settings import make_app
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.consumer import Consumer
from merlin.execution.distributed.engine import Engine
from merlin.execution.distributed.leaving import lease_s
from merlin.execution.distributed.publish import Publisher
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.refusals import Refusals
from merlin.execution.distributed.slots import Slots
from merlin.execution.distributed.transport import use_guarded

QUIET = ("celery.worker.strategy", "celery.app.trace")


class WorkerApp:
    """The application of a worker process and its one engine."""

    def __init__(self) -> None:
        self.config = config = require_config()
        self.refusals, self.slots = Refusals(), Slots()
        use_guarded(self.refusals, self.slots)
        self.celery = make_app(config)
        self.celery.conf.worker_consumer = partial(
            Consumer, config=config, refusals=self.refusals, slots=self.slots
        )
        self.engine: Engine | None = None
        self.celery.task(name=names.TASK, ignore_result=True)(self.chunk)
        signals.celeryd_after_setup.connect(self._after_setup, weak=False)
        signals.worker_ready.connect(self._ready, weak=False)
        signals.worker_shutting_down.connect(self._shutting_down, weak=False)
        signals.worker_shutdown.connect(self._shutdown, weak=False)

    def chunk(self, envelope: Any) -> None:
        """The one task: run what a message offers."""
        assert self.engine is not None
        try:
            self.engine.handle(envelope)
        finally:
            self.slots.free()

    def _after_setup(self, sender: str, instance: Any, conf: Any, **_: Any) -> None:
        pool = getattr(instance.pool_cls, "__module__", "")
        if not pool.endswith((".thread", ".solo")):
            raise SystemExit(
                f"merlin: workers run with --pool threads (the work itself runs in processes of their own), not {pool}"
            )
        for name in QUIET:
            # a message says nothing; the engine tells of chunks
            logging.getLogger(name).setLevel(logging.WARNING)
        queues = list(instance.app.amqp.queues.consume_from or instance.app.amqp.queues)
        self.slots.num = int(instance.concurrency or 1)
        backend = RedisBackend(self.config, make_client(self.config.backend), lease_s=lease_s(), name=sender)
        self.engine = Engine(
            self.config,
            backend,
            Publisher(self.config, self.celery),
            name=sender,
            concurrency=self.slots.num,
            queues=queues,
            refusals=self.refusals,
        )

    def _ready(self, sender: Any, **_: Any) -> None:
        assert self.engine is not None
        self.engine.start()

    def _shutting_down(self, **_: Any) -> None:
        if self.engine is not None:
            self.engine.shut_down()

    def _shutdown(self, **_: Any) -> None:
        if self.engine is not None:
            self.engine.close()


def __getattr__(name: str) -> Any:
    """`app`, made when Celery asks for it, so that importing this module needs no configuration."""
    if name in ("app", "celery"):
        worker = WorkerApp()
        globals()["app"] = globals()["celery"] = worker.celery
        return worker.celery
    raise AttributeError(name)
