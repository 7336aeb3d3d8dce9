"""Collecting again: the values of all rows that ended ok go into bundles, these into shards, and a manifest lists them.

Nothing of the study is written. What is finished is kept when it is killed, and the next call goes on. Memory: that of
a run's collecting, for each process.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from functools import lru_cache

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from merlin.base.clock import utc_now
from merlin.base.ranges import Ranges, distinct, numbers, to_ranges, total, within
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Outcome
from merlin.shards.format.digest import combine
from merlin.shards.format.manifest_file import DataSet, read_manifest
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import info_name, read_info
from merlin.shards.processes import fresh_processes
from merlin.shards.recollecting.directory import MARK, CollectDirectory, CollectedShard, Origins
from merlin.shards.recollecting.ended import Ended, how_it_ended
from merlin.shards.recollecting.pieces import Collected, CollectJob, Done, Job, Maker, PackJob
from merlin.shards.recollecting.share import Recollection, Share
from merlin.shards.writing.growing import merge, write_manifest_file
from merlin.shards.writing.manifest import absent_rows, holds, part_of, present_rows

Progress = Callable[[int, int], None]  # rows done, rows in all

_MOST_TASKS, _LEAST_TASKS = 10_000, 500  # of one job that reads files
_JOBS_EACH = 8  # at least, for each process, if there is so much to do
_WORTH_ROWS, _WORTH_BYTES = 20_000, 256 << 20  # for more than one process, which takes a second to begin


class Recollected(Struct, frozen=True):
    """A data set that was collected again."""

    data: DataSet
    origins: Origins  # of the rows in it, and of those that its filters reject
    failed: Mapping[str, int]  # rows whose outputs are not as the new definition says, by cause
    num_kept: int  # shards that were finished before


def collect_again(
    request: Recollection, *, num_workers: int | None = 1, progress: Progress | None = None
) -> Recollected:
    """Make the data set of a request, and its manifest.

    `num_workers` processes do so; None: as many as are worth it (then a script needs ``if __name__ == "__main__"``, as
    they are started afresh).

    Raises:
        UsageError: the directory holds something else.
        ShardError: a row that ended ok can be had neither from files nor from a proven row of a shard.
    """
    ended = [how_it_ended(share) for share in request.shares]
    mark = _mark(request, ended)
    with CollectDirectory(request.out, request.study.plan.study_id, request.definition) as directory:
        if directory.is_complete(mark):
            return Recollected(read_manifest(request.out), Origins(), {}, 0)
        todo = _Todo(request, ended, directory, progress or (lambda done, total: None))
        num_kept = len(todo.done)
        processes = num_workers or _worthwhile(request, todo.num_rows)
        todo.plan(processes)
        processes = min(processes, len(todo.jobs))
        if processes <= 1:
            with closing(Maker(request)) as make:
                while (job := todo.next()) is not None:
                    todo.note(make(job))
        else:
            _carry_out(todo, request, processes)
        _write_manifest(request, ended, todo.done, mark)
        directory.remove_record()
    failed: dict[str, int] = {}
    for shard in todo.done.values():
        for cause, rows in shard.failed.items():
            failed[cause] = failed.get(cause, 0) + total(rows)
    origins = sum((shard.origins for shard in todo.done.values()), Origins())
    return Recollected(read_manifest(request.out), origins, failed, num_kept)


def _mark(request: Recollection, ended: list[Ended]) -> str:
    """Digest of all that decides what is in the data set."""
    resets = [share.resets for share in ended if any(share.resets)]
    return combine(request.definition, [share.ok for share in ended], *([resets] if resets else []))


def _worthwhile(request: Recollection, num_rows: int) -> int:
    """The number of processes that so many rows are worth."""
    row_bytes = sum(field.item_bytes for field in request.shares[0].definition.fields)
    is_worth = num_rows >= _WORTH_ROWS or num_rows * row_bytes >= _WORTH_BYTES
    return len(os.sched_getaffinity(0)) if is_worth else 1


def _carry_out(todo: _Todo, request: Recollection, num: int) -> None:
    """Have all jobs done by `num` processes."""
    sent = pickle.dumps(request)
    running: set[Future[Done]] = set()
    with fresh_processes(num, "a process that collected") as pool:
        while True:
            while len(running) < 2 * num and (job := todo.next()) is not None:
                running.add(pool.submit(_do, sent, job))
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for each in ended:
                todo.note(each.result())


@lru_cache(maxsize=1)
def _maker(request: bytes) -> Maker:
    return Maker(pickle.loads(request))


def _do(request: bytes, job: Job) -> Done:
    return _maker(request)(job)


class _Shard(Struct):
    """A shard that is not finished."""

    share: int
    absent: Ranges
    num_jobs: int = 0  # that have not collected their part of it
    causes: dict[str, list[int]] = field(default_factory=dict)  # rows
    origins: Origins = field(default_factory=Origins)


class _Todo:
    """Which jobs are to be done, and in which order: a shard is packed as soon as all its rows are collected."""

    def __init__(
        self, request: Recollection, ended: list[Ended], directory: CollectDirectory, progress: Progress
    ) -> None:
        self._request, self._ended, self._directory, self._progress = request, ended, directory, progress
        self.done: dict[int, CollectedShard] = {}
        self.jobs: deque[CollectJob] = deque()
        self.num_rows, self._num_collected = 0, 0
        self._open: dict[int, _Shard] = {}
        self._resets: dict[int, str] = {}  # by shard
        self._ready: deque[PackJob] = deque()
        finished = directory.begin()
        for number, (share, end) in enumerate(zip(request.shares, ended, strict=True)):
            self._resets |= end.resets_by_shard(share)
            for shard in share.rows.shards:
                present = present_rows(share.rows, end.outcomes, shard)
                resets = self._resets.get(shard, "")
                if shard in finished and _is_current(request, finished[shard], present, resets):
                    self.done[shard] = finished[shard]
                else:
                    self._open[shard] = _Shard(number, absent_rows(share.rows, shard, present))
                    self.num_rows += len(present)

    def plan(self, num_processes: int) -> None:
        """Cut the rows of all open shards into jobs."""
        size = min(_MOST_TASKS, max(_LEAST_TASKS, self.num_rows // (_JOBS_EACH * num_processes)))
        if num_processes == 1:
            size = _MOST_TASKS
        for number, share in enumerate(self._request.shares):
            for lo, hi in self._open_ranges(number):
                for job in _jobs(number, share, self._ended[number], lo, hi, size):
                    first = share.rows.first_row(job.source)
                    for shard, _, _ in share.rows.pieces(first + job.lo, first + job.hi):
                        self._open[shard].num_jobs += 1
                    self.jobs.append(job)
        for shard, state in self._open.items():
            if not state.num_jobs:
                self._get_ready(shard)

    def _open_ranges(self, number: int) -> Iterator[tuple[int, int]]:
        """The rows [lo, hi) of shards that are not finished, as far as these follow each other."""
        share = self._request.shares[number]
        shards = np.array([s for s in share.rows.shards if s in self._open], dtype=np.int64)
        for a, b in to_ranges(shards):
            yield share.rows.shard_range(a)[0], share.rows.shard_range(b - 1)[1]

    def next(self) -> Job | None:
        """The next job; None if there is none now."""
        if self._ready:
            return self._ready.popleft()
        return self.jobs.popleft() if self.jobs else None

    def note(self, done: Done) -> None:
        """Take in what a job has done."""
        if isinstance(done, CollectedShard):
            item = replace(done, resets=self._resets.get(done.shard, ""))
            self._directory.add(item)
            self.done[item.shard] = item
            return
        share = self._request.shares[done.job.share]
        first = share.rows.first_row(done.job.source)
        for shard, lo, hi in share.rows.pieces(first + done.job.lo, first + done.job.hi):
            state = self._open[shard]
            for task, cause in done.causes.items():
                if lo <= first + task < hi:
                    state.causes.setdefault(cause, []).append(first + task)
            state.origins += _origins(done, lo - first, hi - first)
            state.num_jobs -= 1
            if not state.num_jobs:
                self._get_ready(shard)
        self._num_collected += total(done.job.ok)
        self._progress(self._num_collected, self.num_rows)

    def _get_ready(self, shard: int) -> None:
        state = self._open[shard]
        failed = {cause: to_ranges(distinct(np.array(rows))) for cause, rows in state.causes.items()}
        absent = to_ranges(numbers(r for ranges in (state.absent, *failed.values()) for r in ranges))
        self._ready.append(PackJob(state.share, shard, absent, failed, state.origins))


def _jobs(number: int, share: Share, ended: Ended, lo: int, hi: int, size: int) -> Iterator[CollectJob]:
    """The jobs that collect rows [lo, hi)."""
    for span in share.rows.spans(lo, hi):
        name = share.definition.sources[span.source]
        runs = ended.outcomes[span.source]
        for a, b in _cuts(share, share.workspace.instance(name), span.lo, span.hi, size):
            ok = runs.ranges([Outcome.OK], a, b)
            if ok:
                yield CollectJob(number, name, a, b, tuple(ok))


def _cuts(share: Share, source: StepInstance, lo: int, hi: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut tasks [lo, hi) where old shards end if values come from these, else into parts of `size`.

    An old shard is checked as a whole.
    """
    old = share.old_definition
    if old is not None and source.id in old.sources and (old.cleanup or share.ways(source)[1]):
        first = share.old_rows.first_row(source.id)
        for _, a, b in share.old_rows.pieces(first + lo, first + hi):
            yield a - first, b - first
    else:
        for at in range(lo, hi, size):
            yield at, min(at + size, hi)


def _is_current(request: Recollection, item: CollectedShard, present: Array, resets: str) -> bool:
    """True if the shard holds the rows that have ended ok by now, and none of these has run again since."""
    if item.resets != resets:
        return False
    info = read_info(request.out / info_name(item.shard))
    failed = numbers(r for ranges in item.failed.values() for r in ranges)
    return holds(info, np.setdiff1d(present, failed))


def _origins(done: Collected, lo: int, hi: int) -> Origins:
    """The origins of tasks [lo, hi)."""
    parts = (done.from_files, done.from_shards)
    return Origins(*(total(within(ranges, [(lo, hi)])) for ranges in parts))


def _write_manifest(
    request: Recollection, ended: list[Ended], done: Mapping[int, CollectedShard], mark: str
) -> None:
    """Write the manifest and the virtual data set; readers find a data set from now on."""
    finished, parts = utc_now(), []
    for share, end in zip(request.shares, ended, strict=True):
        endings = end.without(share, done)
        part = part_of(
            share.workspace, share.new, endings, lambda shard, _: read_info(request.out / info_name(shard))
        )
        study = {**part.study, "finished": finished, MARK: mark}
        parts.append(replace(part, directory=request.out, study=study))
    write_manifest_file(request.out, merge(parts))
