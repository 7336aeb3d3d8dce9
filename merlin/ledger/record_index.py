"""Finds the records that concern a few tasks among very many, as the ledger grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from merlin.ledger.replay import LedgerEntry, Replay

Array = np.ndarray[Any, Any]


class RecordIndex:
    """The records of one step instance by the tasks that they concern."""

    def __init__(self, state: Replay, instance: str) -> None:
        self._state, self._instance = state, instance
        self._clear()

    def _clear(self) -> None:
        self._generation = self._state.generation
        self._entries: list[LedgerEntry] = []
        self._lo: Array = np.empty(0, np.int64)  # (records,)
        self._hi: Array = np.empty(0, np.int64)

    def over(self, ranges: Iterable[tuple[int, int]]) -> list[LedgerEntry]:
        """The records with any task of these sorted ranges, which do not overlap, in the order of reading."""
        self._update()
        wanted = np.array(list(ranges), np.int64).reshape(-1, 2)
        if not len(wanted):
            return []
        near = np.flatnonzero((self._hi > wanted[0, 0]) & (self._lo < wanted[-1, 1]))
        # a record reaches into a range if more ranges begin before its end than end at or before its beginning
        begun = np.searchsorted(wanted[:, 0], self._hi[near], side="left")
        ended = np.searchsorted(wanted[:, 1], self._lo[near], side="right")
        return [self._entries[i] for i in near[begun > ended].tolist()]

    def _update(self) -> None:
        if self._generation != self._state.generation:
            self._clear()
        new = self._state.entries(self._instance, len(self._entries))
        if new:
            self._entries += new
            self._lo = np.concatenate([self._lo, [entry.header.lo for entry in new]])
            self._hi = np.concatenate([self._hi, [entry.header.hi for entry in new]])
