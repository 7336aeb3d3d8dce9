"""What a snapshot needs to know about a ledger. Both a tally of its records and a census of its headers know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from merlin.ledger.records import EventRecord
from merlin.ledger.segments import DamagedBytes
from merlin.plan.failed_input import OutcomeRecord
from merlin.status.tally import Recent, Sums


class LedgerFacts(OutcomeRecord, Protocol):
    """A ledger at one moment."""

    @property
    def sums(self) -> Mapping[str, Sums]:
        """What the records of every step instance add up to, without the counts."""

    @property
    def recent(self) -> Mapping[str, Recent]:
        """What ended lately, of every step instance."""

    def last_seen(self) -> Mapping[str, int]:
        """Step instance -> workers whose last record was about it, in the current run."""

    def events(self) -> list[EventRecord]:
        """How all runs began and ended, and at least the last event of any other kind, in order of time."""

    @property
    def damage(self) -> list[DamagedBytes]:
        """The bytes that could not be used."""

    @property
    def size_bytes(self) -> int:
        """Valid bytes read."""
