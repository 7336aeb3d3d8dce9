"""The two kinds of work: collect some tasks into bundles, and pack the bundles of a shard."""

from __future__ import annotations

import os
import shutil

import numpy as np
from msgspec import Struct

from merlin.base.ranges import Ranges, format_ranges, mark, to_ranges
from merlin.errors import ShardError, command_line
from merlin.plan.plan import PlannedField, StepInstance
from merlin.shards.format.segments import Array
from merlin.shards.recollecting.directory import CollectedShard, Origins, folders_in
from merlin.shards.recollecting.from_shards import ShardCollector
from merlin.shards.recollecting.share import Recollection, Share, describe_fields, where_stored
from merlin.shards.writing.collect import CollectRequest, collect_chunk
from merlin.shards.writing.folders import Folders
from merlin.shards.writing.gather import write_shard


class CollectJob(Struct, frozen=True):
    """Tasks [lo, hi) of one source, of which those in `ok` ended ok."""

    share: int
    source: str
    lo: int
    hi: int
    ok: Ranges


class PackJob(Struct, frozen=True):
    """One shard, whose rows are in bundles, except those in `absent`."""

    share: int
    shard: int
    absent: Ranges
    failed: dict[str, Ranges]  # rows by cause; they are in `absent`, too
    origins: Origins


class Collected(Struct, frozen=True):
    """What has become of a `CollectJob`."""

    job: CollectJob
    causes: dict[int, str]  # by task: outputs that are not as the new definition says
    from_files: Ranges  # tasks
    from_shards: Ranges


Job = CollectJob | PackJob
Done = Collected | CollectedShard


class Maker:
    """Does jobs in one process."""

    def __init__(self, request: Recollection) -> None:
        self._request = request
        self._sources: dict[tuple[int, str], _SourceCollector] = {}

    def __call__(self, job: Job) -> Done:
        if isinstance(job, PackJob):
            return self._pack(job)
        key = job.share, job.source
        if key not in self._sources:
            self.close()  # one at a time has a shard open
            share = self._request.shares[job.share]
            source = share.workspace.instance(job.source)
            self._sources[key] = _SourceCollector(share, source, folders_in(self._request.out))
        return self._sources[key].collect(job)

    def _pack(self, job: PackJob) -> CollectedShard:
        share, folders = self._request.shares[job.share], folders_in(self._request.out)
        info = write_shard(share.workspace, share.new, job.shard, job.absent, folders=folders)
        shutil.rmtree(folders.bundles_of(job.shard), ignore_errors=True)
        return CollectedShard(
            job.shard, info.info_digest, info.size_bytes, info.num_rows, job.failed, job.origins
        )

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources.clear()


class _SourceCollector:
    """Collects the tasks of one source."""

    def __init__(self, share: Share, source: StepInstance, folders: Folders) -> None:
        self.share, self.source, self.folders = share, source, folders
        self.in_files, self.only_stored = share.ways(source)
        self._shards = ShardCollector(share, source)

    def collect(self, job: CollectJob) -> Collected:
        ok = np.zeros(job.hi - job.lo, dtype=bool)
        mark(ok, job.ok, job.lo)
        has_files = ok & self._have_directories(job, ok) if self.in_files else ok & (not self.only_stored)
        causes: dict[int, str] = {}
        if has_files.any() and self.only_stored:
            self._from_shards(job, has_files, self.in_files, self.only_stored, causes)
        elif has_files.any():
            causes |= collect_chunk(self._request(job, has_files))
        without = ok & ~has_files
        if without.any():
            self._from_shards(job, without, (), (*self.in_files, *self.only_stored), causes)
        stored = ok if self.only_stored else without
        good = ok.copy()
        good[[task - job.lo for task in causes]] = False
        ranges = (to_ranges(job.lo + np.flatnonzero(mask & good)) for mask in (~stored, stored))
        return Collected(job, causes, *ranges)

    def _have_directories(self, job: CollectJob, ok: Array) -> Array:
        """(n,) bool: tasks whose files are there; a clean-up removes whole directories."""
        found = np.zeros(len(ok), dtype=bool)
        workspace, source = self.share.workspace, self.source
        above = os.fspath(workspace.instance_dir(source))  # pathlib costs more than the look
        for i in np.flatnonzero(ok).tolist():
            found[i] = os.access(f"{above}/{workspace.sample_path(source, job.lo + i)}", os.F_OK)
        return found

    def _request(self, job: CollectJob, ok: Array) -> CollectRequest:
        return CollectRequest(
            workspace=self.share.workspace,
            aggregate=self.share.new,
            source=self.source,
            lo=job.lo,
            hi=job.hi,
            ok=ok,
            folders=self.folders,
        )

    # ----------------------------------------------------------------- from shards

    def _from_shards(
        self,
        job: CollectJob,
        wanted: Array,
        in_files: tuple[PlannedField, ...],
        in_shards: tuple[PlannedField, ...],
        causes: dict[int, str],
    ) -> None:
        """Collect the wanted tasks, whose fields `in_shards` are in the study's shards."""
        self._require_stored(job, wanted, in_shards)
        left = self._shards.collect(self._request(job, wanted), in_files, in_shards, causes)
        if left.any():
            self._refuse_filtered(job, left)
            raise self._not_there(job.lo + np.flatnonzero(left))

    def _refuse_filtered(self, job: CollectJob, left: Array) -> None:
        """Raise ShardError for rows that an old filter rejected and that have to be in the data set now."""
        for shard, lo, hi in self._shards.old.pieces(self.source.id, job.lo, job.hi):
            for expression, tasks in self._shards.filtered(shard, lo, hi).items():
                mine = tasks[left[tasks - job.lo]]
                if len(mine):
                    raise ShardError(
                        f"tasks {format_ranges(to_ranges(mine))} of '{self.source.id}': the study's data set does not "
                        f"have what its filter '{expression}' rejected, and their files are not there; keep this "
                        f"filter in valid, or run the spec again"
                    )

    def _require_stored(self, job: CollectJob, wanted: Array, fields: tuple[PlannedField, ...]) -> None:
        lacking = [each for each in fields if each.name not in self.share.stored]
        if lacking:
            tasks = format_ranges(to_ranges(job.lo + np.flatnonzero(wanted)))
            raise ShardError(
                f"{describe_fields(lacking)} of tasks {tasks} of '{self.source.id}': their files are not there any "
                f"more, and {where_stored(self.share)}; leave it out, or run these samples again with a new study"
            )

    def _not_there(self, tasks: Array) -> ShardError:
        share = self.share
        what = f"tasks {format_ranges(to_ranges(tasks))} of '{self.source.id}' ended ok"
        if share.old_directory is None or not share.old_directory.is_dir():
            return ShardError(f"{what}, and neither their files nor a data set '{share.new.id}' are there")
        why = "".join(f"\n  {problem}" for problem in self._shards.old.problems[:5])
        repair = command_line("shards", "verify", share.old_directory, "--repair")
        return ShardError(
            f"{what}, and their files are not there; the shards in {share.old_directory} do not have them, or are "
            f"damaged there; to get them back: {repair}{why}"
        )

    def close(self) -> None:
        self._shards.close()
