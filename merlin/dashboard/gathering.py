"""Finds out, without a dashboard, what metrics show: for `merlin metrics`, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from merlin.config.load import find_config
from merlin.dashboard.listed_study import ListedStudy
from merlin.dashboard.measured import DetailsReader, Measured, merged_queues
from merlin.dashboard.metrics import chosen_pages
from merlin.dashboard.places import Place
from merlin.errors import MerlinError
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.at_work import QueueLine, WorkerLine, queue_lines, worker_line
from merlin.views.queues import open_queues
from merlin.views.servers import open_registry
from merlin.views.study_page import StudyPage, StudyView
from merlin.views.worker_jobs import JobLine, clients, job_line, our_jobs


class Gatherer:
    """Reads the studies in directories and those that were named; unchanged parts are not read again."""

    def __init__(self, roots: Sequence[Path], named: Sequence[Path]) -> None:
        self._places = [Place(root) for root in roots]
        self._named = named
        self._views: dict[str, StudyView] = {}
        self._details = DetailsReader()

    def measure(self) -> Measured:
        """Measure everything now. Servers that do not answer take some seconds, and their part is missing."""
        began = time.monotonic()
        lines, ids = self._lines()
        pages = self._pages(ids)
        workers, queues, jobs = _servers()
        shared = merged_queues([*queues, *(queue for page in pages for queue in page.queues)])
        local = (worker for page in pages if page.executor == "local" for worker in page.workers)
        return Measured(
            pages=pages,
            lines=lines,
            workers=[*workers, *local],
            queues=shared,
            jobs=jobs,
            details=self._details.read(chosen_pages(pages)),
            seconds=time.monotonic() - began,
        )

    def _lines(self) -> tuple[list[ListedStudy], dict[Path, str]]:
        """The studies of the directories, the newest first; and what each study is called."""
        ids: dict[Path, str] = {}
        lines: list[ListedStudy] = []
        taken: dict[str, int] = {}
        for path in self._named:
            ids[path] = _unique(path.name, taken)
        for place in self._places:
            there = {path: ids.get(path) or _unique(path.name, taken) for path in sorted(place.find())}
            ids |= there
            place.read(there, lambda _: None)
            lines += place.lines(there)
        lines.sort(key=lambda line: (line.when, line.id), reverse=True)
        return lines, ids

    def _pages(self, ids: dict[Path, str]) -> list[StudyPage]:
        """The pages of the studies that are not over, and of all that were named."""
        found = {page.workspace: page for place in self._places for page in place.pages()}
        for path in self._named:
            view = self._views.setdefault(ids[path], StudyView(path, id=ids[path]))
            found[str(path)] = view.look()
        return list(found.values())


def _unique(name: str, taken: dict[str, int]) -> str:
    """The name, with "~2" behind it for the second study with this name."""
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}~{taken[name]}"


def _servers() -> tuple[list[WorkerLine], Sequence[QueueLine], list[JobLine]]:
    """Workers, queues and the jobs that workers live in; nothing where no server is configured or answers."""
    infos: list[WorkerInfo] = []
    workers: list[WorkerLine] = []
    queues: Sequence[QueueLine] = ()
    with suppress(MerlinError):
        if (config := find_config()) is not None:
            infos = open_registry(config).workers()
            workers = [worker_line(info, config) for info in infos]
            queues = queue_lines(config, open_queues(config), infos, {})
    return workers, queues, _jobs(infos) if infos or queues else []


def _jobs(infos: Sequence[WorkerInfo]) -> list[JobLine]:
    found: list[JobLine] = []
    with suppress(MerlinError):  # no scheduler is installed here, or it does not answer
        for client in clients():
            ours = our_jobs(client, infos)
            found += [job_line(job, client.scheduler.system, infos, time.time()) for job in ours]
    return found
