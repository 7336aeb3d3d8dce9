"""The Celery worker: ``celery -A merlin worker -Q …``, through `merlin/celery.py`.

Celery delivers sealed messages to threads of the worker, and the engine handles them. Messages are acknowledged when
they arrive, because a lost message is sent again. No result is stored.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from functools import partial
from typing import Any

from celery import Celery, signals

from merlin.batch.here import find_here
from merlin.config.load import require_config
from merlin.config.model import Config
from merlin.execution.distributed import names
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.consumer import Consumer
from merlin.execution.distributed.engine import Engine
from merlin.execution.distributed.idle_watch import first_wait_s
from merlin.execution.distributed.leaving import lease_s
from merlin.execution.distributed.publish import make_carrier
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.refusals import Refusals
from merlin.execution.distributed.slots import Slots
from merlin.execution.distributed.transport import end_wait, use_guarded
from merlin.execution.distributed.worker_pool import num_threads
from merlin.execution.fork_server import ForkServers
from merlin.execution.pool import WorkerProcess
from merlin.execution.walltime import Walltime

QUIET = ("celery.worker.strategy", "celery.app.trace")
ANSWER_S = 15.0  # for one command to Redis as a broker, such as a poll of the queues
# the user's settings cannot change these: only JSON is read, and the broker cannot send commands to workers
NOT_TO_WEAKEN = {
    "task_serializer": "json",
    "accept_content": ["json"],
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
}


def make_app(config: Config) -> Celery:
    """An application on the configured broker."""
    app = Celery("merlin", broker=config.broker.url, set_as_current=False)
    settings: dict[str, Any] = {
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_acks_late": False,
        "task_track_started": False,
        # on Redis a message is taken when a slot is free (see `transport`); RabbitMQ limits unacknowledged messages
        "worker_prefetch_multiplier": 0 if config.broker.is_redis else 1,
        "worker_pool": "threads",
        "worker_hijack_root_logger": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Celery would wait in a pool thread for an answer that the main thread may read instead
        "worker_enable_prefetch_count_reduction": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_connection_timeout": 2.0,
        "broker_heartbeat": 30,
        "task_queue_max_priority": names.MAX_PRIORITY,
        "task_create_missing_queues": True,
    }
    if config.broker.is_redis:
        settings["broker_transport_options"] = {
            "queue_order_strategy": "priority",
            "socket_connect_timeout": 2.0,
            "socket_timeout": ANSWER_S,  # also for a server that disappeared without closing the connection
            "socket_keepalive": True,
            "health_check_interval": 15,
        }
    if config.broker.broker_use_ssl:
        settings["broker_use_ssl"] = config.broker.broker_use_ssl
    app.conf.update(settings)
    app.conf.update(config.celery)
    app.conf.update(NOT_TO_WEAKEN)
    return app


class WorkerApp:
    """The application of a worker process and its one engine."""

    def __init__(self, servers: ForkServers | None = None) -> None:
        self._servers = servers
        self.config = config = require_config()
        self.refusals, self.slots = Refusals(), Slots()
        use_guarded(self.refusals, self.slots)
        self.celery = make_app(config)
        self.celery.conf.worker_consumer = partial(
            Consumer, config=config, refusals=self.refusals, slots=self.slots
        )
        self.engine: Engine | None = None
        self.celery.task(name=names.TASK, ignore_result=True)(self.chunk)
        signals.worker_init.connect(_fix_size, weak=False)
        signals.celeryd_after_setup.connect(self._after_setup, weak=False)

    def chunk(self, envelope: Any) -> None:
        """The only Celery task: run the chunk that a message offers."""
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
            # the engine logs chunks; log lines per message add nothing
            logging.getLogger(name).setLevel(logging.WARNING)
        queues = list(instance.app.amqp.queues.consume_from or instance.app.amqp.queues)
        self.slots.num = int(instance.concurrency or 1)
        servers = self._servers or ForkServers(num_threads(self.slots.num))
        here = find_here(os.environ)
        backend = RedisBackend(self.config, make_client(self.config.backend), lease_s=lease_s(), name=sender)
        self.engine = engine = Engine(
            self.config,
            backend,
            make_carrier(self.config),
            name=sender,
            concurrency=self.slots.num,
            queues=queues,
            refusals=self.refusals,
            walltime=Walltime(here.ends),
            here=here,
            first_wait_s=first_wait_s(os.environ, is_in_allocation=bool(here.job)),
            slots=self.slots,
            start_process=partial(WorkerProcess, servers=servers),
        )
        signals.worker_ready.connect(lambda **_: self._start(engine), weak=False)
        signals.worker_shutting_down.connect(lambda **_: self._shut_down(engine), weak=False)
        signals.worker_shutdown.connect(lambda **_: engine.close(), weak=False)

    def _shut_down(self, engine: Engine) -> None:
        """Celery calls this in the handler of a signal, where nothing may wait for a server."""
        engine.shut_down()
        threading.Thread(target=end_wait, name="end-wait", daemon=True).start()

    def _start(self, engine: Engine) -> None:
        engine.start()
        # a warning of the batch scheduler; Celery would print its threads
        signal.signal(signal.SIGUSR1, lambda *_: engine.leaving.warn())


def _fix_size(sender: Any, **_: Any) -> None:
    """Take `--autoscale MAX,MIN` for `--concurrency MAX`: a pool of threads cannot grow."""
    if limits := sender.options.pop("autoscale", None):
        sender.concurrency = limits[0]


def __getattr__(name: str) -> Any:
    """`app`, made when Celery asks for it, so that importing this module needs no configuration."""
    if name in ("app", "celery"):
        worker = WorkerApp()
        globals()["app"] = globals()["celery"] = worker.celery
        return worker.celery
    raise AttributeError(name)
