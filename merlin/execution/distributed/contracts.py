"""What the processes of a study on workers share: leases, the owner's mailbox, a registry, a carrier of messages.

Implemented on Redis (`redis_backend`) and a broker (`publish`), and in memory (`merlin.testing.memory`); one suite,
`merlin.testing.exchange`, is for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from merlin.execution.distributed.registry import Command, Op, StudyInfo, WorkerInfo

Envelope = str  # JSON of a sealed message
MAX_LETTERS = 1000  # of one look


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One entry of the mailbox; entries are in the order of their ids."""

    id: str
    kind: Literal["taken", "report", "expired"]
    lease: str
    worker: str = ""  # of "taken"
    report: Envelope = ""  # of "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A lease as its holder, or a later owner, finds it."""

    lease: str
    envelope: Envelope  # the chunk
    since: float  # server time: when it was offered or taken
    worker: str = ""  # "": nobody has taken it
    expires_s: float = 0.0  # from now; of one that was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Who is the owner."""

    is_ours: bool
    now: float  # server time
    read: str = ""  # the last letter that an owner has dealt with
    is_over: bool = False  # the run has ended, and there is nothing to own


class Leases(Protocol):
    """A worker's side of one study.

    Each method is one atomic event, and may be asked again if its answer was lost. It raises StudyGoneError if the
    server does not hold the study (any more), RedisFullError (nothing was changed) and RedisUnreachableError.
    """

    def take(self, lease: str, worker: str) -> Envelope | None:
        """Hold the offer from now on; None if it was taken before, or is void."""

    def renew(self, leases: Collection[str]) -> set[str]:
        """Hold them for another while; those that are not held any more."""

    def settle(self, lease: str, report: Envelope) -> bool:
        """End the lease, and put the report into the mailbox; False, and nothing happens, if it is not held."""


class Mailbox(Protocol):
    """The owner's side of one study. Errors as in `Leases`; what needs the ownership raises OwnershipLostError, too."""

    def open(self, session: str, *, only_if_gone: bool = False) -> bool:
        """Begin a run as its owner; offers and leases of an earlier one are void.

        False, and nothing changes, if `only_if_gone`, and the server holds the study.
        """

    def exists(self) -> bool:
        """Whether the server holds the study."""

    def own(self, session: str, *, force: bool = False) -> Standing:
        """Become the owner if there is none, or anyway; or say that we still are."""

    def renew(self) -> float:
        """Stay the owner; returns the server's time."""

    def release(self) -> None:
        """Let somebody else become the owner."""

    def offers(self) -> list[Offer]:
        """Everything that is offered or held."""

    def names(self) -> set[str]:
        """The leases of everything that is offered or held."""

    def num_held(self) -> int:
        """Chunks that workers hold."""

    def offer(self, offers: Mapping[str, Envelope], read: str) -> None:
        """Add offers by lease; letters up to `read` are dealt with. Their messages are to be sent afterwards."""

    def void(self, leases: Iterable[str]) -> None:
        """Nobody may take them, nobody holds them any more."""

    def expire(self) -> int:
        """End the leases that ran out, each with a letter; returns their number."""

    def letters(self, after: str = "", wait_s: float = 0.0) -> list[Letter]:
        """The next letters after this one; waits so long for one. Those dealt with are kept for a minute."""

    def close(self) -> None:
        """The run is over: forget it."""

    def drop(self) -> None:
        """End the run, whoever owns it."""

    def forget(self) -> None:
        """From now on it is gone: who knows of it publishes it from its ledger."""


class Carrier(Protocol):
    """Carries messages to the workers that serve a queue. Raises ExecutionError if the broker cannot be reached."""

    def send(self, queue: str, envelopes: Sequence[Mapping[str, str]], *, is_retry: bool = False) -> None:
        """Deliver these messages, each once, or twice, or never; those of retries come before others."""

    def empty(self, queues: Iterable[str]) -> Sequence[str]:
        """Those of these queues in which no message waits."""


class Registry(Protocol):
    """One user's workers and open studies. Methods raise ExecutionError if the server does not answer."""

    def beat(self, worker: WorkerInfo) -> float:
        """Say that the worker lives, and what it does; returns the server's time."""

    def leave(self, *worker_names: str) -> None:
        """The workers have ended."""

    def workers(self, *, all: bool = False) -> list[WorkerInfo]:
        """The live workers, by name; with `all`, those that fell silent within the hour, too."""

    def num_workers(self, now: float) -> int:
        """About how many live workers there are, in one command; `now`: the server's time."""

    def send(self, /, worker_names: Iterable[str] | None, op: Op, **more: Any) -> list[str]:
        """Give a command to workers (to all live ones); returns their names."""

    def receive(self, name: str) -> tuple[list[Command], int]:
        """The commands to a worker that have arrived, and how many were refused."""

    def advertise(self, study: StudyInfo) -> None:
        """From now on workers look after the study, even if its messages are lost."""

    def withdraw(self, study_id: str, session: str = "") -> None:
        """The study is over, if its run is this one still (or anyway)."""

    def studies(self) -> list[StudyInfo]:
        """The studies that are not over, the oldest first."""

    def count(self, name: str, num: int = 1) -> None:
        """Count something that belongs to no study, such as refused messages."""


class Backend(Protocol):
    """Everything that is not a message."""

    @property
    def registry(self) -> Registry: ...

    def leases(self, study_id: str) -> Leases: ...

    def mailbox(self, study_id: str) -> Mailbox: ...

    def time(self) -> float:
        """The server's, epoch seconds."""
