"""Which of the live workers a command line means. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.registry import WorkerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFilter:
    """All that is given must hold: one of the queues, and one of the patterns or of the spec's workers."""

    queues: Collection[str] = ()  # any of a queue's names
    patterns: Collection[str] = ()  # regular expressions, found anywhere in the name
    spec: Mapping[str, Collection[str]] | None = None  # a spec's workers and their queues

    @property
    def is_empty(self) -> bool:
        return not self.queues and not self.patterns and self.spec is None


def short_name(worker: WorkerInfo) -> str:
    """The worker's name as people write it, without Celery's prefix."""
    return worker.name.removeprefix("celery@")


def choose_workers(
    workers: Sequence[WorkerInfo], wanted: WorkerFilter, config: Config | None = None
) -> list[WorkerInfo]:
    """The workers that pass. Raises UsageError for a pattern that is no regular expression."""
    patterns = [_compiled(pattern) for pattern in wanted.patterns]
    queues = {_plain(config, queue) for queue in wanted.queues}
    return [
        worker
        for worker in workers
        if (not queues or queues & {_plain(config, queue) for queue in worker.queues})
        and ((not patterns and wanted.spec is None) or _is_named(worker, patterns, wanted.spec, config))
    ]


def _is_named(
    worker: WorkerInfo,
    patterns: list[re.Pattern[str]],
    spec: Mapping[str, Collection[str]] | None,
    config: Config | None,
) -> bool:
    if any(pattern.search(worker.name) for pattern in patterns):
        return True
    # the name alone will not do: many studies have a default_worker
    return any(
        re.match(rf"{re.escape(name)}(-\d+)?\.", short_name(worker))
        and {_plain(config, queue) for queue in worker.queues} & set(queues)
        for name, queues in (spec or {}).items()
    )


def _plain(config: Config | None, queue: str) -> str:
    from merlin.execution.distributed.launch import plain_queue

    return plain_queue(config, queue)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--workers takes regular expressions, and {pattern!r} is none: {error}; example: --workers 'sim.*'"
        ) from None
