"""The names of workers, as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from merlin.execution.distributed.registry import WorkerInfo


def short_name(worker: WorkerInfo) -> str:
    """The worker's name as people write it, without Celery's prefix."""
    return worker.name.removeprefix("celery@")
