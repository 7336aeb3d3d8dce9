"""A worker of an allocation looks whether it is still needed, and leaves when it is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from merlin.errors import ExecutionError
from merlin.execution.distributed.contracts import Registry
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.stay import FIRST_ASKED_S, FIRST_S, Idleness, is_needed, wanted

if TYPE_CHECKING:
    from merlin.config.model import Config

# 1: leave when nothing is left to do; 0: stay; not set: leave an allocation
VARIABLE = "MERLIN_LEAVE_WHEN_DONE"


class IdleWatch:
    """Looks at the registry while its worker runs nothing. `info` describes the worker, `report` sends this."""

    def __init__(
        self,
        registry: Registry,
        config: Config,
        info: Callable[[], WorkerInfo],
        report: Callable[[], None],
        server_time: Callable[[], float],
        first_s: float,
    ) -> None:
        self._registry, self._config, self._info, self._report = registry, config, info, report
        self._server_time = server_time
        self._idleness = Idleness(time.monotonic(), first_s)
        self.is_announced = False  # the registry says that it leaves

    def note_work(self) -> None:
        """The worker has taken a chunk, which may end before the next look."""
        self._idleness.busy(time.monotonic())

    def is_useless(self, now: float) -> bool:
        """Whether the worker leaves. `now`: monotonic. Raises ExecutionError if the server does not answer."""
        if self._info().running:
            self._idleness.busy(now)
            return False
        if not self._idleness.is_due(now):
            return False
        num_workers = self._registry.num_workers(self._server_time())
        if not self._idleness.checked(self._is_needed(), now, num_workers):
            return False
        # others may decide the same now: each announces it first, and then checks whether another worker stays
        self.is_announced = True
        self._report()
        if self._is_needed() or self._info().running:
            self.is_announced = False
            self._report()
            return False
        return True

    def _is_needed(self) -> bool:
        me = self._info()
        all_wanted = wanted(self._registry.studies(), self._registry.open_work(), self._config.queue_name)
        if not any(want.queue in me.queues for want in all_wanted):
            return False
        workers = self._registry.workers() if me.job else []
        return is_needed(me, workers, all_wanted, self._server_time())


def first_wait_s(environment: Mapping[str, str], *, is_in_allocation: bool) -> float | None:
    """How long a worker waits for its first study; None if it stays for ever. Raises ExecutionError."""
    match environment.get(VARIABLE, "").strip():
        case "1":
            return FIRST_ASKED_S
        case "0":
            return None
        case "":
            return FIRST_S if is_in_allocation else None
        case other:
            raise ExecutionError(f"{VARIABLE} must be 1 or 0, not {other!r}")
