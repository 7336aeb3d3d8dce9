"""Where each row of a shard comes from: the bundles, the shard as it was before, the tasks' own files.

Of every row it keeps a few numbers, and no values. Values are read when the shard is written, block by block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from merlin.base.ranges import distinct, format_ranges, to_ranges
from merlin.errors import ShardError, command_line
from merlin.plan.plan import StepInstance, StepKind
from merlin.shards.evidence.previous import previous_rows
from merlin.shards.format.rows import aggregate_of, row_map
from merlin.shards.format.segments import Array, offsets_of
from merlin.shards.reading.column_reader import ColumnReader, OpenFiles
from merlin.shards.writing import bundle
from merlin.shards.writing.collect import CollectRequest, collect_chunk
from merlin.shards.writing.folders import Folders
from merlin.shards.writing.row_sources import RowSource, Stretches

if TYPE_CHECKING:
    from pathlib import Path

    from merlin.workspace.directory import Workspace

_MAX_PROBLEMS = 5  # that an error lists


class Assembly:
    """The rows of one shard. Raises ShardError if there is one that nothing holds."""

    def __init__(
        self, workspace: Workspace, instance: StepInstance, shard: int, wanted: Array, folders: Folders
    ) -> None:
        """`wanted` (n,): the rows whose tasks ended ok."""
        self._workspace, self._instance, self._shard = workspace, instance, shard
        self._wanted, self._folders = wanted, folders
        self._files = OpenFiles()
        self._sources: list[RowSource] = []
        self._source_of = np.full(len(wanted), -1, dtype=np.int32)
        self._position = np.full(len(wanted), -1, dtype=np.int64)  # in the source; -1: filtered
        self._filter_of = np.full(len(wanted), -1, dtype=np.int32)
        self._doubtful = np.zeros(len(wanted), dtype=bool)
        self._expressions: list[str] = []
        self._problems: list[str] = []
        try:
            self._add_bundles()
            self._add_previous()
            self._add_task_files()
            self._require_all()
        except BaseException:
            self.close()
            raise
        self._keep_those_to_store()

    # ---------------------------------------------------------------- sources

    def _add_bundles(self, known: set[Path] | None = None, *, overwrite: bool = True) -> None:
        """Claim the rows of the shard's bundles; the strongest claim comes last and overwrites."""
        for file in bundle.list_bundles(self._folders.bundles_of(self._shard)):
            if known is not None and file.path in known:
                continue
            try:
                source = ColumnReader(file.path, bundle.FORMAT, self._files)
            except ShardError as e:
                self._problems.append(str(e))
                self._doubt(file.lo, file.hi)
                continue
            self._claim(source, None if overwrite else self._source_of < 0)

    def _doubt(self, lo: int, hi: int) -> None:
        """Forget the sources of rows [lo, hi): they may be older than a bundle that cannot be read."""
        rows = (self._wanted >= lo) & (self._wanted < hi)
        self._source_of[rows] = self._filter_of[rows] = -1
        self._doubtful |= rows

    def _add_previous(self) -> None:
        """Claim rows of the shard as it was before: only those that its sidecar proves."""
        if not (self._source_of < 0).any():
            return
        found, problems = previous_rows(self._folders.shards, self._shard)
        self._problems.extend(problems)
        for source in found:
            self._claim(source, (self._source_of < 0) & ~self._doubtful)

    def _add_task_files(self) -> None:
        """Collect what is missing from the directories of `cmd` tasks, into bundles as during the run."""
        missing = self._wanted[self._source_of < 0]
        if not len(missing):
            return
        known = {file.path for file in bundle.list_bundles(self._folders.bundles_of(self._shard))}
        rows = row_map(self._workspace, self._instance)
        for lo, hi in to_ranges(missing):
            for span in rows.spans(lo, hi):
                source = self._workspace.instance(rows.aggregate.sources[span.source])
                if source.kind is StepKind.CMD:
                    self._collect(source, span.lo, span.hi, span.first_row)
        self._add_bundles(known, overwrite=False)

    def _collect(self, source: StepInstance, lo: int, hi: int, first_row: int) -> None:
        ok = np.ones(hi - lo, dtype=bool)
        request = CollectRequest(
            workspace=self._workspace,
            aggregate=self._instance,
            source=source,
            lo=lo,
            hi=hi,
            ok=ok,
            folders=self._folders,
        )
        causes = collect_chunk(request)
        self._problems.extend(f"row {first_row + task}: {cause}" for task, cause in causes.items())

    def _claim(self, source: RowSource, free: Array | None) -> None:
        """Take the source's rows where wanted; `free` (n,) bool: which of the wanted ones may be taken (None: all)."""
        number = len(self._sources)
        self._sources.append(source)
        for expression, rows in source.filtered.items():
            useful, at = self._useful(rows, free)
            self._source_of[at[useful]] = number
            self._position[at[useful]] = -1
            self._filter_of[at[useful]] = self._number_of(expression)
        useful, at = self._useful(source.rows, free)
        self._source_of[at[useful]] = number
        self._position[at[useful]] = np.flatnonzero(useful)
        self._filter_of[at[useful]] = -1

    def _useful(self, rows: Array, free: Array | None) -> tuple[Array, Array]:
        """Which of these rows are wanted, and their places among the wanted ones."""
        at = np.searchsorted(self._wanted, rows)
        at[at == len(self._wanted)] = 0
        if not len(self._wanted):
            return np.zeros(len(rows), dtype=bool), at
        useful = self._wanted[at] == rows
        if free is not None:
            useful &= free[at]
        return useful, at

    def _number_of(self, expression: str) -> int:
        if expression not in self._expressions:
            self._expressions.append(expression)
        return self._expressions.index(expression)

    def _require_all(self) -> None:
        missing = self._source_of < 0
        if missing.any():
            what = format_ranges(to_ranges(self._wanted[missing]))
            why = "".join(f"\n  {problem}" for problem in self._problems[:_MAX_PROBLEMS])
            again = command_line("rerun", self._workspace.path, *self._steps_to_rerun())
            raise ShardError(
                f"shard {self._shard} of '{self._instance.id}': nothing holds row {what}, though the tasks ended ok; "
                f"to run them again: {again}{why}"
            )

    def _steps_to_rerun(self) -> list[str]:
        sources = aggregate_of(self._instance).sources
        steps = dict.fromkeys(self._workspace.instance(id).step for id in sources)
        return [word for step in steps for word in ("--step", step)]

    def _keep_those_to_store(self) -> None:
        """Set the filtered rows apart, and cut the others into stretches that are consecutive in one source."""
        self.filtered: dict[str, Array] = {
            expression: self._wanted[self._filter_of == number]
            for number, expression in enumerate(self._expressions)
            if (self._filter_of == number).any()
        }
        stored = self._filter_of < 0
        self.rows: Array = self._wanted[stored]
        self._source_of, self._position = self._source_of[stored], self._position[stored]
        num = len(self.rows)
        same = (np.diff(self._source_of) == 0) & (np.diff(self._position) == 1)
        starts = np.flatnonzero(np.concatenate(([True], ~same))) if num else np.zeros(0, np.int64)
        ends = np.append(starts[1:], num) if num else starts
        self._stretches = Stretches(self._source_of[starts], self._position[starts], ends)
        self._offsets: dict[str, Array] = {}
        self._items: dict[str, Stretches] = {}

    # ----------------------------------------------------------------- values

    @property
    def attempts(self) -> Array:
        """(n,) int32: which attempt made each row."""
        found = np.zeros(len(self.rows), dtype="<i4")
        for number in distinct(self._source_of).tolist():
            mine = self._source_of == number
            found[mine] = self._sources[number].attempts[self._position[mine]]
        return found

    def read(self, name: str, lo: int, hi: int, out: Array) -> None:
        """Put rows number [lo, hi) of a data set into `out`."""
        self._stretches.read(self._sources, name, lo, hi, out)

    def offsets(self, name: str) -> Array:
        """(n + 1,) of a ragged field ("fields/g/nodes"): where the items of each row begin in the shard."""
        if name not in self._offsets:
            self._offsets[name] = self._find_items(name)
        return self._offsets[name]

    def _find_items(self, name: str) -> Array:
        lengths = np.zeros(len(self.rows), dtype=np.int64)
        first_items = np.zeros(len(self._stretches.begins), dtype=np.int64)  # in the source, of each stretch
        runs_of = self._stretches.sources
        for number in distinct(runs_of).tolist():
            begins = self._sources[number].offsets(name)
            mine = self._source_of == number
            at = self._position[mine]
            lengths[mine] = begins[at + 1] - begins[at]
            first_items[runs_of == number] = begins[self._stretches.begins[runs_of == number]]
        offsets = offsets_of(lengths)
        self._items[name] = Stretches(runs_of, first_items, offsets[self._stretches.ends])
        return offsets

    def read_items(self, name: str, lo: int, hi: int, out: Array) -> None:
        """Put items [lo, hi) of a ragged field into `out`, after `offsets` was asked for it."""
        self._items[name].read(self._sources, f"{name}/values", lo, hi, out)

    def close(self) -> None:
        for source in self._sources:
            source.close()
        self._files.close()
