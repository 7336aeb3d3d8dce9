"""Rows of a shard file that are proven to be what was written, whatever else is wrong with the file.

A row counts if its values give the check value that a sidecar recorded for it. So rows are taken from damaged files,
and from older versions of a shard, but never on trust.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from merlin.base.ranges import numbers
from merlin.errors import ShardError, command_line
from merlin.shards.evidence.stored import StoredShard
from merlin.shards.format.digest import digest_array
from merlin.shards.format.row_check import FIELDS, GIVEN, decode
from merlin.shards.format.rows import NO_ROWS
from merlin.shards.format.segments import Array, offsets_of
from merlin.shards.format.shard_info import (
    ATTEMPT,
    DatasetInfo,
    ShardInfo,
    info_name,
    next_info_name,
    read_info,
    shard_name,
    skeleton_digest,
)


class ProvenRows:
    """The proven rows of one shard file; a row source for the packer (see gather)."""

    def __init__(self, path: Path, info: ShardInfo) -> None:
        """Read and check the complete file against what `info` recorded of its rows.

        Raises ShardError if `info` has recorded no check values. A file that cannot be read has no proven rows.
        """
        self.path = path
        self._stored: list[StoredShard] = []
        known = numbers(info.rows)
        recorded = decode(info.checks)
        if len(recorded) != len(known):
            raise ShardError(f"{path}: its sidecar has check values of {len(recorded)} of {len(known)} rows")
        self._file = np.full(len(known), -1)  # number in _stored, by place in `known`
        self._place = np.zeros(len(known), dtype=np.int64)
        self.given = NO_ROWS  # rows whose inputs and parameters are proven
        self.filtered = {expression: numbers(rows) for expression, rows in info.filtered.items() if rows}
        try:
            self._search(info, known, recorded)
        except BaseException:
            self.close()
            raise
        found = self._file >= 0
        self.rows: Array = known[found]
        self._file, self._place = self._file[found], self._place[found]
        self._offsets: dict[str, Array] = {}
        self.attempts = self._attempts(info)

    def _search(self, info: ShardInfo, known: Array, recorded: Array) -> None:
        """Look for rows first where the sidecar says that they are, then where the file itself says so."""
        if not self.path.is_file():
            return
        stored = StoredShard.by_sidecar(self.path, info)
        self._stored.append(stored)
        names = [dataset.name for dataset in info.datasets]
        self._match(stored, known, names, known, recorded)
        if (self._file >= 0).all() or _has_skeleton(self.path, info):
            return  # the file's own headers say the same as the sidecar
        try:
            stored = StoredShard.by_itself(self.path)
            self._stored.append(stored)
            self._match(stored, stored.read("row", 0, stored.num_rows), names, known, recorded)
        except ShardError:
            return

    def _match(
        self, stored: StoredShard, claimed: Array, names: list[str], known: Array, recorded: Array
    ) -> None:
        """Look for rows in a file that claims to hold the rows `claimed`, in this order."""
        if not len(claimed) or not len(known):
            return
        values, readable = stored.checks(claimed, names)
        at = np.searchsorted(known, claimed)
        at[at == len(known)] = 0
        equal = (known[at] == claimed)[:, None] & readable & (values == recorded[at])
        new = equal[:, FIELDS] & (self._file[at] < 0)
        self._file[at[new]] = len(self._stored) - 1
        self._place[at[new]] = np.flatnonzero(new)
        self.given = np.union1d(self.given, claimed[equal[:, GIVEN]])

    def _attempts(self, info: ShardInfo) -> Array:
        """Which attempt made each row; 0 where that is damaged, as no check value covers it."""
        attempts = np.zeros(len(self.rows), dtype="<i4")
        mine = self._file == 0
        for dataset in (d for d in info.datasets if d.name == ATTEMPT and self._stored):
            try:
                values = self._stored[0].read(ATTEMPT, 0, info.num_rows)
            except ShardError:
                continue
            if _is_intact(values, dataset):
                attempts[mine] = values[self._place[mine]]
        return attempts

    def read(self, name: str, lo: int, out: Array) -> None:
        """Put proven rows number [lo, lo + len(out)) of a data set into `out`; of ragged values, items."""
        if name.endswith("/offsets"):
            out[...] = self.offsets(name.removesuffix("/offsets"))[lo : lo + len(out)]
        elif name.endswith("/values"):
            self._read_items(name, lo, out)
        else:
            for first, last in self._runs(lo, lo + len(out)):
                stored, place = self._stored[self._file[first]], int(self._place[first])
                out[first - lo : last - lo] = stored.read(name, place, place + last - first)

    def _runs(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Stretches of proven rows [lo, hi) that lie one after the other in one file."""
        same = (np.diff(self._file[lo:hi]) == 0) & (np.diff(self._place[lo:hi]) == 1)
        cuts = [lo, *(lo + 1 + np.flatnonzero(~same)).tolist(), hi]
        return [(a, b) for a, b in pairwise(cuts) if a < b]

    def offsets(self, name: str) -> Array:
        """(n + 1,) of a ragged field ("fields/g/nodes"): where the items of each proven row begin.

        Only the items of proven rows are counted.
        """
        if name not in self._offsets:
            lengths = np.zeros(len(self.rows), dtype=np.int64)
            for number in np.unique(self._file).tolist():
                mine = self._file == number
                lengths[mine] = np.diff(self._stored[number].offsets(name))[self._place[mine]]
            self._offsets[name] = offsets_of(lengths)
        return self._offsets[name]

    def _read_items(self, name: str, lo: int, out: Array) -> None:
        field, hi = name.removesuffix("/values"), lo + len(out)
        offsets = self.offsets(field)
        first = int(np.searchsorted(offsets, lo, side="right")) - 1
        last = int(np.searchsorted(offsets, hi, side="left"))
        for a, b in self._runs(first, last):
            stored = self._stored[self._file[a]]
            begin, end = max(lo, int(offsets[a])), min(hi, int(offsets[b]))
            shift = int(stored.offsets(field)[self._place[a]]) - int(offsets[a])
            out[begin - lo : end - lo] = stored.read(name, begin + shift, end + shift)

    def close(self) -> None:
        for stored in self._stored:
            stored.close()
        self._stored.clear()


def previous_rows(directory: Path, shard: int) -> tuple[list[ProvenRows], list[str]]:
    """The proven rows of a shard as it is on disk, by its sidecar and by that of a writer that was killed.

    A sidecar without its shard still knows which rows were filtered. Also returns the problems that kept it
    from finding more rows.
    """
    path = directory / shard_name(shard)
    sidecars = [directory / name for name in (info_name(shard), next_info_name(shard))]
    found, problems = [], []
    for sidecar in sidecars:
        if sidecar.is_file() or (sidecar == sidecars[0] and path.is_file()):
            try:
                found.append(ProvenRows(path, read_info(sidecar)))
            except ShardError as e:
                command = command_line("shards", "verify", directory, "--repair")
                problems.append(f"{e}; to get it back: {command}")
    return found, problems


def _is_intact(values: Array, dataset: DatasetInfo) -> bool:
    """True if the values of a small column have the digests that were recorded."""
    step = dataset.block_rows
    blocks = [digest_array(values[lo : lo + step]) for lo in range(0, len(values), step)]
    return tuple(blocks) == dataset.blocks


def _has_skeleton(path: Path, info: ShardInfo) -> bool:
    """True if everything except the values is as it was written."""
    return path.stat().st_size == info.size_bytes and skeleton_digest(path, info.datasets) == info.skeleton
