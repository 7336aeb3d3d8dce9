"""What the pages of the dashboard ask, while the study writes: the time that each answer takes in the server."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from report import Row
from scale import prepared_study

CHUNK = 8  # tasks per ledger record: seconds of work of an ordinary shell task
WRITERS = 8
DONE = 0.9  # of the study, when it is looked at for the first time
NEW_RECORDS = 50  # between two looks, as hundreds of workers write in a second
ROUNDS = 60


class GrowingStudy:
    """A study whose tasks end ok or, one of a hundred, failed, as fast as one likes; none of them ever runs."""

    def __init__(self, folder: Path, num: int) -> None:
        from merlin.ledger.writer import LedgerWriter

        self.workspace, self.num = prepared_study(folder, num), num
        self._random, self._next = np.random.default_rng(0), 0
        self._writers = [LedgerWriter(self.workspace.ledger_dir, f"w{i}", sync=False) for i in range(WRITERS)]
        self.end_tasks(int(num * DONE) // CHUNK)

    def end_tasks(self, num_records: int) -> None:
        for number in range(num_records):
            self._writers[number % WRITERS].append(self._record())

    def _record(self) -> object:
        from merlin.ledger.records import ChunkRecord, Failure

        lo, hi = self._next, self._next + CHUNK
        self._next = hi if hi + CHUNK <= self.num else 0
        has_failed = self._random.random(CHUNK) < 0.01
        failures = [
            Failure(task=lo + int(i), cause="exit code 3", exit_code=3, tail=f"no convergence in cell {i}")
            for i in np.flatnonzero(has_failed)
        ]
        return ChunkRecord(
            instance="null_step", lo=lo, hi=hi, started=time.time() - 2.0, outcomes=has_failed.astype(np.uint8),
            seconds=np.full(CHUNK, 0.25, np.float32), failures=tuple(failures),
        )  # fmt: skip


def following(tmp: Path, rounds: int, num: int) -> list[Row]:
    from merlin.views.study_page import StudyView

    study = GrowingStudy(tmp / "following", num)
    view, times = StudyView(study.workspace.path), {}
    began = time.perf_counter()
    view.look()
    first_s = time.perf_counter() - began
    for _ in range(ROUNDS):
        study.end_tasks(NEW_RECORDS)
        for name, ask in _questions(view, num):
            began = time.perf_counter()
            ask()
            times.setdefault(name, []).append(1000 * (time.perf_counter() - began))
    memory = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB"
    of = f"of {num:,} shell tasks while it writes, p95"
    rows = [
        Row(f"dashboard: {name} {of}", f"{np.percentile(each, 95):.0f} ms", floor="≤ 100 ms", memory=memory)
        for name, each in times.items()
    ]
    what = f"dashboard: first look at {num:,} shell tasks, {int(num * DONE) // CHUNK:,} records"
    return [*rows, Row(what, f"{first_s:.1f} s", memory=memory)]


def _questions(view: object, num: int) -> Iterator[tuple[str, Callable[[], object]]]:
    from merlin.views.heat import heat
    from merlin.views.study_page import StudyView
    from merlin.views.task_list import tasks
    from merlin.views.task_page import task_page

    assert isinstance(view, StudyView)
    somewhere = int(time.time() * 1e6) % (num // 2)
    yield "a study", view.look
    yield "its throughput", view.throughput
    yield "a heat map", lambda: heat(view, "null_step")
    yield "50 tasks", lambda: tasks(view, "null_step", after=somewhere)
    yield "200 failed tasks", lambda: tasks(view, "", "failed", after=somewhere, limit=200)
    yield "a task", lambda: task_page(view, "null_step", somewhere)
