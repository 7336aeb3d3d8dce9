"""The Celery application on the configured broker, for workers and for whoever sends them messages.

Messages are acknowledged when they arrive, because losing one loses nothing, and no result is stored.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from merlin.config.model import Config
from merlin.execution.distributed import names

ANSWER_S = 15.0  # for one command to Redis as a broker; a poll of the queues takes one
# before Redis hands an unacknowledged message out again; a message never waits that long
VISIBILITY_S = 7 * 24 * 3600
# not by the user's settings either: nothing but JSON is read, and nobody commands a worker through the broker
NOT_TO_WEAKEN = {
    "task_serializer": "json",
    "accept_content": ["json"],
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
}


def make_app(config: Config) -> Celery:
    """An application on the configured broker."""
    app = Celery("merlin", broker=config.broker.url, set_as_current=False)
    transport = names.transport(config.broker.kind)
    settings: dict[str, Any] = {
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_acks_late": False,
        "task_track_started": False,
        # on Redis a message is taken when a slot is free, see `transport`; RabbitMQ counts those not acknowledged
        "worker_prefetch_multiplier": 0 if transport == "redis" else 1,
        "worker_pool": "threads",
        "worker_hijack_root_logger": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # undoing the reduction waits for an answer in a thread of the pool, which the main thread may read instead
        "worker_enable_prefetch_count_reduction": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_connection_timeout": 2.0,
        "broker_heartbeat": 30,
        "task_queue_max_priority": names.MAX_PRIORITY,
        "task_create_missing_queues": True,
    }
    if transport == "redis":
        settings["broker_transport_options"] = {
            "visibility_timeout": VISIBILITY_S,
            "queue_order_strategy": "priority",
            "socket_connect_timeout": 2.0,
            "socket_timeout": ANSWER_S,  # of a server that went away without a word, too
            "socket_keepalive": True,
            "health_check_interval": 15,
        }
    if config.broker.broker_use_ssl:
        settings["broker_use_ssl"] = config.broker.broker_use_ssl
    app.conf.update(settings)
    app.conf.update(config.celery)
    app.conf.update(NOT_TO_WEAKEN)
    return app
