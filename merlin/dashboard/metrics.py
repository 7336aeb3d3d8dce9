"""Metrics for Prometheus, in its text format: what the pages of the dashboard show, as numbers with bounded labels.

No label holds a sample, a host or a message. If there are many studies, those that are not over come first, then the
newest; the rest is only counted. If a study has many steps, the last ones share one series.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from merlin import __version__
from merlin.dashboard.ended_pages import EndedPages
from merlin.dashboard.measured import DetailsReader, Measured, merged_queues
from merlin.dashboard.metric_families import Families
from merlin.dashboard.study_metrics import add_line, add_page, add_study_counts

if TYPE_CHECKING:
    from merlin.dashboard.hub import Hub
    from merlin.views.at_work import QueueLine, WorkerLine
    from merlin.views.study_page import StudyPage
    from merlin.views.worker_jobs import JobLine

CONTENT_TYPE = CONTENT_TYPE_LATEST
MAX_STUDIES = 30  # with series of their own
MAX_QUEUES = 50


class Metrics:
    """The metrics of a dashboard, in its event loop. What takes time is read in a thread, and shown next time."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._details, self._ended = hub, DetailsReader(), EndedPages()

    async def exposition(self) -> bytes:
        """The metrics now; the text of thousands of series is written in a thread."""
        return await asyncio.to_thread(exposition, self._measure())

    def _measure(self) -> Measured:
        began = time.monotonic()
        at_work, listed = self._hub.open_pages(), self._hub.listing.seen().studies
        there = {line.workspace for line in listed}
        pages = [*at_work, *(page for page in self._ended.latest(at_work) if page.workspace in there)]
        return Measured(
            pages=pages,
            lines=listed,
            workers=list({worker.name: worker for page in pages for worker in page.workers}.values()),
            queues=merged_queues(queue for page in pages for queue in page.queues),
            jobs=list({job.id: job for page in pages for job in page.jobs}.values()),
            details=self._details.latest(chosen_pages(pages)),
            seconds=time.monotonic() - began,
        )


def exposition(measured: Measured) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(measured))
    return generate_latest(registry)


def chosen_pages(pages: Iterable[StudyPage]) -> list[StudyPage]:
    """The pages of studies that have series of their own: studies at work first, then the newest."""
    is_over = ("finished", "failed", "stopped", "new", "unreadable")
    return sorted(pages, key=lambda page: (page.state in is_over, -(page.started or page.now)))[:MAX_STUDIES]


class _Collector(Collector):
    """Makes the series of one moment; no registry is kept."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        measured, families = self._measured, Families()
        families.add("merlin_build", 1.0, version=__version__)
        pages = chosen_pages(measured.pages)
        for page in pages:
            add_page(families, page, measured.details.get(page.workspace))
        shown = {page.workspace for page in pages}
        rest = [line for line in measured.lines if line.workspace not in shown]
        room = MAX_STUDIES - len(pages)
        for line in rest[:room]:
            add_line(families, line)
        others = {page.workspace for page in measured.pages} - shown - {line.workspace for line in rest}
        families.add("merlin_studies_left_out", len(rest[room:]) + len(others))
        add_study_counts(families, measured)
        _add_workers(families, measured.workers)
        _add_queues(families, measured.queues)
        _add_jobs(families, measured.jobs)
        families.add("merlin_scrape_duration_seconds", measured.seconds)
        yield from families.all()


def _add_workers(families: Families, workers: Sequence[WorkerLine]) -> None:
    staying = [worker for worker in workers if not worker.is_stopping]
    families.add("merlin_workers", len(staying))
    families.add("merlin_worker_slots", sum(worker.slots for worker in staying))
    families.add("merlin_worker_chunks_running", sum(len(worker.running) for worker in workers))


def _add_queues(families: Families, queues: Sequence[QueueLine]) -> None:
    for queue in queues[:MAX_QUEUES]:
        families.add("merlin_queue_workers", queue.num_workers, queue=queue.name)
        if queue.depth is not None:
            families.add("merlin_queue_messages", queue.depth, queue=queue.name)
            families.add("merlin_queue_oldest_seconds", queue.oldest_s or 0.0, queue=queue.name)


def _add_jobs(families: Families, jobs: Sequence[JobLine]) -> None:
    numbers = Counter((job.scheduler, job.state.lower()) for job in jobs)
    for (scheduler, state), num in sorted(numbers.items()):
        families.add("merlin_worker_jobs", num, scheduler=scheduler, state=state)
