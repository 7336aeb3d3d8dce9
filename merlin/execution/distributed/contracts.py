"""The interfaces between the processes of a study: leases, the owner's mailbox, a registry, a carrier of messages.

They are implemented on Redis (`redis_backend`) and a broker (`publish`), and in memory (`merlin.testing.memory`). One
test suite, `merlin.testing.exchange`, checks all implementations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from merlin.execution.distributed.registry import Command, Op, OpenWork, StudyInfo, WorkerInfo

Envelope = str  # JSON of a sealed message
MAX_LETTERS = 1000  # per read


def letter_order(id: str) -> tuple[int, int]:
    """The sort key of a letter's id, which is a time and a number."""
    millis, _, count = id.partition("-")
    return int(millis), int(count or 0)


class Letter(Struct, frozen=True, kw_only=True):
    """One entry of the mailbox. Entries are ordered by `letter_order` of their ids."""

    id: str
    kind: Literal["taken", "report", "expired"]
    lease: str
    worker: str = ""  # of "taken"
    report: Envelope = ""  # of "report"


class Offer(Struct, frozen=True, kw_only=True):
    """A chunk that is offered to workers, or held by one."""

    lease: str
    envelope: Envelope  # the chunk
    since: float  # when it was offered or taken, server time
    worker: str = ""  # its holder; "" if nobody has taken it
    expires_s: float = 0.0  # remaining time, if it was taken


class Standing(Struct, frozen=True, kw_only=True):
    """The answer to a request for the ownership."""

    is_ours: bool
    now: float  # server time
    read: str = ""  # the last letter that an owner has handled
    is_over: bool = False  # the run has ended, and there is nothing to own


class Leases(Protocol):
    """The worker's interface to one study.

    Each method is one atomic event, and may be repeated if its answer was lost. It raises StudyGoneError if the server
    does not hold the study (any more), RedisFullError (nothing was changed) and RedisUnreachableError.
    """

    def take(self, lease: str, worker: str) -> Envelope | None:
        """Take the offer, and hold its lease from now on. Returns None if it was taken before or is void."""

    def renew(self, leases: Collection[str]) -> set[str]:
        """Extend these leases. Returns those that are not held any more."""

    def settle(self, lease: str, report: Envelope) -> bool:
        """End the lease and put the report into the mailbox. Does nothing and returns False if it is not held."""


class Mailbox(Protocol):
    """The owner's interface to one study.

    Errors are those of `Leases`. Methods that need the ownership also raise OwnershipLostError.
    """

    def open(self, session: str, *, only_if_gone: bool = False) -> bool:
        """Begin a run as its owner. Offers and leases of an earlier run become void.

        With `only_if_gone`, if the server still holds the study, it changes nothing and returns False.
        """

    def exists(self) -> bool:
        """Return whether the server holds the study."""

    def own(self, session: str, *, force: bool = False) -> Standing:
        """Become or stay the owner if there is no other one; with `force`, in any case."""

    def renew(self) -> float:
        """Renew the ownership; returns the server's time."""

    def release(self) -> None:
        """Release the ownership, so that somebody else can become the owner."""

    def offers(self) -> list[Offer]:
        """All chunks that are offered or held."""

    def names(self) -> set[str]:
        """The leases of all chunks that are offered or held."""

    def num_held(self) -> int:
        """The number of chunks that workers hold."""

    def offer(self, offers: Mapping[str, Envelope], read: str) -> None:
        """Add offers by lease, and mark letters up to `read` as handled. Send the messages of the offers later."""

    def void(self, leases: Iterable[str]) -> None:
        """Remove these offers and leases. Nobody can take or hold them any more."""

    def expire(self) -> int:
        """End the leases that have expired, each with a letter; returns their number."""

    def letters(self, after: str = "", wait_s: float = 0.0) -> list[Letter]:
        """The next letters after `after`; waits up to `wait_s` for one. Handled letters are kept for a minute."""

    def close(self) -> None:
        """End the run as its owner, and delete its data."""

    def drop(self) -> None:
        """End the run, no matter who owns it."""

    def forget(self) -> None:
        """Delete the study. Workers that know it will publish it again from its ledger."""


class Carrier(Protocol):
    """Carries messages to the workers that serve a queue. Raises ExecutionError if the broker cannot be reached."""

    def send(self, queue: str, envelopes: Sequence[Mapping[str, str]], *, is_retry: bool = False) -> None:
        """Send these messages. Each may arrive once, twice or never. Retries come before other messages."""

    def empty(self, queues: Iterable[str]) -> Sequence[str]:
        """Those of these queues that hold no message."""


class Registry(Protocol):
    """One user's workers and open studies. Methods raise ExecutionError if the server does not answer."""

    def beat(self, worker: WorkerInfo) -> float:
        """Report that the worker is alive, and what it runs; returns the server's time."""

    def leave(self, *worker_names: str) -> None:
        """Remove workers that have ended."""

    def workers(self, *, all: bool = False) -> list[WorkerInfo]:
        """The live workers, ordered by name; with `all`, also those whose last beat was within the hour."""

    def num_workers(self, now: float) -> int:
        """The approximate number of live workers, from one command. `now` is the server's time."""

    def send(self, /, worker_names: Iterable[str] | None, op: Op, **more: Any) -> list[str]:
        """Send a command to these workers, or with None to all live ones; returns their names."""

    def receive(self, name: str) -> tuple[list[Command], int]:
        """The new commands to a worker, and the number of refused ones; those that are too old are neither."""

    def advertise(self, study: StudyInfo) -> None:
        """Advertise a study. Workers then serve it even if its messages are lost."""

    def withdraw(self, study_id: str, session: str = "") -> None:
        """Withdraw the advertisement of a study; with `session`, only if that is its current run."""

    def studies(self) -> list[StudyInfo]:
        """The studies that are not over, oldest first."""

    def publish_work(self, study_id: str, work: Sequence[OpenWork]) -> None:
        """Say what an advertised study wants of workers. It is forgotten with the advertisement."""

    def open_work(self) -> dict[str, list[OpenWork]]:
        """What the open studies want of workers, by study; studies that have not said it yet are left out."""

    def count(self, name: str, num: int = 1) -> None:
        """Add to a counter that belongs to no study, such as refused messages."""


class Backend(Protocol):
    """The access to leases, mailboxes and the registry."""

    @property
    def registry(self) -> Registry: ...

    def leases(self, study_id: str) -> Leases: ...

    def mailbox(self, study_id: str) -> Mailbox: ...

    def time(self) -> float:
        """The server's time, in epoch seconds."""
