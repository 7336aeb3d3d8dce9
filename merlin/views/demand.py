"""What the queues of some workers demand: the work that is left on them, and the workers that do it."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from merlin.config.model import Config
from merlin.errors import ExecutionError, MerlinError
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.published import PublishedStudy
from merlin.views.queues import served_queues
from merlin.views.servers import open_registry
from merlin.workspace.directory import open_workspace

ASK_S = 0.03  # between two questions whether a study is over
OPEN = ("running", "gone", "unreachable")  # states of a study that may need workers


class Demand(Struct, frozen=True, kw_only=True):
    """The work on some queues at one moment, in seconds of slots."""

    num_open: int  # studies that are not over
    num_startable: int
    left_s: float | None  # None: no task has ended yet
    busy_s: float  # of the tasks that have ended
    needs_s: Mapping[str, float]  # by step: what a worker must have left of its walltime
    workers: tuple[WorkerInfo, ...]  # alive, on these queues
    bad_nodes: frozenset[str]  # nodes that at least one study sends nothing to


class QueueDemand:
    """Follows the open studies on some queues (names as in specs)."""

    def __init__(self, config: Config, queues: Collection[str], most_s: float = math.inf) -> None:
        """`most_s`: steps that need longer count as no work."""
        self._config, self._queues, self._most_s = config, frozenset(queues), most_s
        self._registry: RedisRegistry | None = None
        self._studies: dict[str, PublishedStudy] = {}
        self._wanted: frozenset[str] = frozenset()  # ids of the open studies, as of the last look

    def look(self) -> Demand:
        """The demand now. Raises ExecutionError if Redis does not answer."""
        if self._registry is None:
            self._registry = open_registry(self._config)
        wanted = {s.study_id: s for s in self._registry.studies() if self._queues & set(s.queues)}
        self._wanted = frozenset(wanted)
        for name, info in wanted.items():
            with suppress(MerlinError):  # this machine does not see its workspace
                if name not in self._studies:
                    self._studies[name] = PublishedStudy(open_workspace(Path(info.workspace)), self._config)
        self._studies = {name: study for name, study in self._studies.items() if name in wanted}
        looks = {name: study.look() for name, study in self._studies.items()}
        alive = [study for name, study in self._studies.items() if looks[name].state in OPEN]
        left = [study.outstanding(self._queues, self._most_s) for study in alive]
        return Demand(
            num_open=len(alive) + len(wanted.keys() - self._studies.keys()),
            num_startable=sum(each.num_startable for each in left),
            left_s=sum(each.left_s for each in left) if any(each.is_known for each in left) else None,
            busy_s=sum(each.busy_s for each in left),
            needs_s={step: need for each in left for step, need in each.needs_s.items()},
            workers=tuple(
                worker
                for worker in self._registry.workers()
                if not worker.is_stopping and served_queues(worker, self._config) & self._queues
            ),
            bad_nodes=frozenset(
                node for look in looks.values() if look.state in OPEN for node in look.bad_nodes
            ),
        )

    def wait(self, limit_s: float) -> None:
        """Wait so long, or until one of the studies that the last look has found open is over."""
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(ASK_S, left_s))
            with suppress(ExecutionError):  # the next look reports it
                if self._registry is not None and not self._wanted <= self._registry.study_ids():
                    return

    def stop(self, names: Collection[str]) -> None:
        """Tell workers to finish what they run and leave. Raises ExecutionError if Redis does not answer."""
        if names:
            (self._registry or open_registry(self._config)).send(sorted(names), "stop")
