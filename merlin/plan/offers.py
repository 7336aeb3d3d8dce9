"""The offers of a study that wait in one queue, and how many may."""

from __future__ import annotations

from msgspec import Struct, field

MIN_WAITING = 64  # offers of one study in one queue with so many slots, even if nobody takes them
PATIENCE_S = 60.0  # for an offer in a queue in which messages of other studies wait, too


class OfferLine(Struct):
    """The offers that wait in one queue."""

    since: dict[str, float] = field(default_factory=dict)  # by lease
    num_again: dict[str, int] = field(default_factory=dict)  # by lease: how often it was sent once more
    _num_taken: float = 0.0  # recently; what was taken a second ago counts half
    _at: float = 0.0

    def leave(self, lease: str) -> None:
        self.num_again.pop(lease, None)
        if self.since.pop(lease, None) is not None:
            self._num_taken += 1

    def demand(self, now: float) -> float:
        """How many offers may wait: what workers may take before more can be offered. Studies may share a queue."""
        self._num_taken *= 0.5 ** max(0.0, now - self._at)
        self._at = now
        return MIN_WAITING + 2 * self._num_taken

    def offered_again(self, lease: str, now: float) -> None:
        """Note that the message of an offer was sent once more."""
        self.since[lease] = now
        self.num_again[lease] = self.num_again.get(lease, 0) + 1

    def has_waited(self, lease: str, now: float) -> bool:
        """Return whether an offer has waited so long that its message may be lost, even if its queue is not empty.

        With each further message of the offer, this takes twice as long.
        """
        return now - self.since[lease] >= PATIENCE_S * 2.0 ** self.num_again.get(lease, 0)
