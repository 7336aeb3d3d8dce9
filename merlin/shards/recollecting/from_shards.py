"""Collects tasks whose values lie in the shards of a data set of before."""

from __future__ import annotations

import numpy as np

from merlin.plan.plan import PlannedField, StepInstance
from merlin.shards.format.segments import Array
from merlin.shards.recollecting.old_shards import OldShards, StoredRows
from merlin.shards.recollecting.share import Share
from merlin.shards.writing.bundle import Contribution, free_path, write_bundle
from merlin.shards.writing.collect import CollectRequest, read_files, store_piece
from merlin.shards.writing.derive import Rules
from merlin.shards.writing.folders import Folders
from merlin.shards.writing.piece import Piece


class ShardCollector:
    """Collects the tasks of one source; the shard that was used last stays open."""

    def __init__(self, share: Share, source: StepInstance) -> None:
        self.share, self.source = share, source
        self.first = share.rows.first_row(source.id)
        self.old = OldShards(share)
        self._rules = Rules(share.workspace, share.new, source)

    def collect(
        self,
        request: CollectRequest,
        in_files: tuple[PlannedField, ...],
        in_shards: tuple[PlannedField, ...],
        causes: dict[int, str],
    ) -> Array:
        """Collect the tasks of a request into bundles: some fields from shards, the others from files.

        Returns (n,) bool: the tasks that no proven row has. `causes` gets those that are not as the
        definition says.
        """
        left = np.array(request.ok)
        for shard, lo, hi in self.old.pieces(self.source.id, request.lo, request.hi):
            if not left[lo - request.lo : hi - request.lo].any():
                continue
            for stored in self.old.rows(shard, self.source.id, lo, hi, in_shards):
                span = slice(stored.lo - request.lo, stored.hi - request.lo)
                taken = left[span] & stored.is_there
                if taken.any():
                    self._take(request, stored, taken, in_files, in_shards, causes)
                    left[span] &= ~taken
            if left[lo - request.lo : hi - request.lo].any():
                self._take_filtered(request, shard, lo, hi, left)
        return left

    def _take(
        self,
        request: CollectRequest,
        stored: StoredRows,
        taken: Array,
        in_files: tuple[PlannedField, ...],
        in_shards: tuple[PlannedField, ...],
        causes: dict[int, str],
    ) -> None:
        """Write bundles of the tasks in `taken`; a bundle has rows of one shard."""
        columns = {f.name: stored.values(self.share.stored[f.name], f) for f in in_shards}
        for shard, lo, hi in self.share.rows.pieces(self.first + stored.lo, self.first + stored.hi):
            at, end = lo - self.first, hi - self.first
            while at < end:
                span = slice(at - stored.lo, end - stored.lo)
                piece = Piece(at, end, taken[span].copy(), causes)
                if in_files and piece.keep.any():
                    read_files(request, piece, in_files)  # the piece may end earlier now
                cut = slice(span.start, span.start + piece.num)
                for column in in_shards:
                    piece.add(column, columns[column.name][cut])
                if piece.keep.any():
                    store_piece(request, self._rules, piece, shard, self.first)
                at = piece.hi

    def _take_filtered(self, request: CollectRequest, old_shard: int, lo: int, hi: int, left: Array) -> None:
        """Note the tasks that an old filter rejected and a new one rejects, too."""
        for expression, tasks in self.filtered(old_shard, lo, hi).items():
            mine = tasks[left[tasks - request.lo]]
            if len(mine) and expression in self.share.kept_filters:
                left[mine - request.lo] = False
                self._note_filtered(request, expression, mine)

    def filtered(self, old_shard: int, lo: int, hi: int) -> dict[str, Array]:
        """Of tasks [lo, hi), those that the old filters rejected, by expression."""
        found = self.old.filtered(old_shard, self.source.id).items()
        return {expression: tasks[(tasks >= lo) & (tasks < hi)] for expression, tasks in found}

    def _note_filtered(self, request: CollectRequest, expression: str, tasks: Array) -> None:
        folders = request.folders or Folders.of(request.workspace, request.aggregate)
        for shard, lo, hi in self.share.rows.pieces(
            self.first + int(tasks[0]), self.first + int(tasks[-1]) + 1
        ):
            rows = self.first + tasks
            rows = rows[(rows >= lo) & (rows < hi)]
            if len(rows):
                nothing = np.zeros(0, np.int64)
                content = Contribution(nothing, nothing.astype(bool), {}, {expression: rows})
                path = free_path(folders.bundles_of(shard), lo, hi, request.origin)
                write_bundle(path, content, request.origin.attributes, is_durable=folders.is_durable)

    def close(self) -> None:
        self.old.close()
