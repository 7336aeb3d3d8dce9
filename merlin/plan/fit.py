"""What a task needs, what a machine has, and which cores, GPUs and nodes a task gets. Pure.

This is the only rule: local runs and workers place their chunks by a `Capacity`, and the scheduler asks it what may
start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from merlin.plan.job_policy import job_policy
from merlin.plan.plan import Plan, Scalar, StepInstance

_MOST = 1e9  # of anything; more is a mistake
_WHOLE = 1000  # parts of a device, to count shares exactly: a third of a device fits three times


class Need(Struct, frozen=True, kw_only=True):
    """What a task of a step instance needs while it runs; one core if the step says nothing."""

    cores: int = 1  # of all its processes together
    gpus: float = 0.0  # below 1: a share of one device
    nodes: int = 1
    is_exclusive: bool = False  # nothing else runs beside it on its nodes
    is_pinned: bool = False  # its processes stay on its cores

    def on_each_of(self, num_nodes: int) -> Need:
        """The part of it on each of so many nodes."""
        if num_nodes <= 1:
            return self
        return replace(self, cores=-(-self.cores // num_nodes), gpus=math.ceil(self.gpus / num_nodes))

    def __str__(self) -> str:
        """The part of it that a machine may not have, e.g. "4 GPUs"."""
        if not self.gpus:
            return f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"{self.gpus:g} GPU{'s' * (self.gpus > 1)}"


ONE_CORE = Need()


def need_of(instance: StepInstance) -> Need:
    """What each task of a step instance needs."""
    resources = instance.resources
    if not instance.kind.runs_user_code or not resources:
        return ONE_CORE
    if job_policy(instance) is not None:  # its tasks run elsewhere
        return ONE_CORE
    nodes = _whole(resources, "nodes", 1)
    procs = _whole(resources, "procs", nodes)  # as for launchers
    cores = procs * _whole(resources, "cores per task", 1)
    return Need(
        cores=cores,
        gpus=_gpus(resources, procs),
        nodes=nodes,
        is_exclusive=any(resources.get(key) is True for key in ("exclusive", "exclusive.allocation")),
        is_pinned=cores > 1 or "cores per task" in resources,
    )


def needs_of(plan: Plan) -> dict[str, Need]:
    """The needs of all step instances, by id."""
    return {instance.id: need_of(instance) for instance in plan.instances}


def _whole(resources: Mapping[str, Scalar], key: str, default: int) -> int:
    """A whole number; the default for what is left out, or known only when the script runs."""
    return max(0 if default == 0 else 1, int(_number(resources.get(key, default), default)))


def _gpus(resources: Mapping[str, Scalar], procs: int) -> float:
    if "gpus" not in resources:
        return float(procs * _whole(resources, "gpus per task", 0))
    value = _number(resources["gpus"], 0)
    return value if 0 < value < 1 else float(max(0, math.ceil(value)))


def _number(value: Scalar, default: float) -> float:
    """A number that may be text, because it came out of a parameter."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return default
    return number if abs(number) < _MOST else default


class Placement(Struct, frozen=True, kw_only=True):
    """The cores, devices and nodes that a chunk holds while it runs."""

    cores: tuple[int, ...] = ()  # of this machine, by index
    gpus: tuple[str, ...] = ()  # of this machine, by index or identifier
    gpu_share: float = 1.0  # of each of these devices
    nodes: tuple[str, ...] = ()  # other nodes of the allocation, which it has for itself


class Room(Protocol):
    """Says what may start now."""

    def fits(self, need: Need, waiting: Need | None = None) -> bool:
        """Return whether a task with this need may start without delaying one that has waited for too long."""


class Capacity:
    """One machine, and the other nodes that tasks on it may use: what is free, and what each chunk holds.

    A task that asks for more cores or nodes than there are gets all of them, and runs alone.
    """

    def __init__(
        self,
        cores: Sequence[int],
        gpus: Sequence[str] = (),
        nodes: Sequence[str] = (),
        *,
        num_slots: int = 0,
        shared_nodes: int = 1,
    ) -> None:
        """`num_slots`: tasks of one core that run at once; if they are more than the cores, they share these.

        `nodes`: others that its tasks have for themselves. `shared_nodes`: of an allocation with more workers, whose
        scheduler finds the cores on other nodes.
        """
        rounds = -(-max(num_slots, len(cores)) // len(cores))
        self._num_cores = max(num_slots, len(cores))
        self._cores = sorted([*cores] * rounds)[: self._num_cores]
        self._gpus = dict.fromkeys(gpus, _WHOLE)  # free parts of each device
        self._nodes = list(nodes)  # that are free
        self._num_nodes, self._shared_nodes = len(nodes), shared_nodes

    @property
    def num_free_cores(self) -> int:
        return len(self._cores)

    def lacks(self, need: Need) -> bool:
        """Return whether a task with this need can never run here."""
        return self._wanted(need)[1] > _WHOLE * len(self._gpus)

    def is_short_of_cores(self, need: Need) -> bool:
        """Return whether a task with this need gets fewer cores here than it asks for."""
        return not self.spreads(need) and need.cores > self._num_cores

    def spreads(self, need: Need) -> bool:
        """Return whether a task with this need also runs on other nodes, and its launcher decides where."""
        return need.nodes > 1 and max(self._num_nodes + 1, self._shared_nodes) > 1

    def fits(self, need: Need, waiting: Need | None = None) -> bool:
        """Return whether a task with this need may start now, and does not delay one with the other need."""
        cores, parts, nodes = self._wanted(need)
        if cores > len(self._cores) or nodes > len(self._nodes) or not self._has_devices(parts):
            return False
        if waiting is None:
            return True
        later_cores, later_parts, later_nodes = self._wanted(waiting)
        return not (
            (cores and len(self._cores) - cores < later_cores)
            or (nodes and len(self._nodes) - nodes < later_nodes)
            or (parts and later_parts)
        )

    def place(self, need: Need) -> Placement:
        """Give a task that fits what it needs. Raises ValueError if it does not fit."""
        if not self.fits(need):
            raise ValueError(f"there is no room for {need}")
        num_cores, parts, num_nodes = self._wanted(need)
        cores, self._cores = self._cores[:num_cores], self._cores[num_cores:]
        nodes, self._nodes = self._nodes[:num_nodes], self._nodes[num_nodes:]
        gpus = self._chosen_devices(parts)
        share = min(parts, _WHOLE)
        for gpu in gpus:
            self._gpus[gpu] -= share
        return Placement(
            cores=tuple(cores), gpus=gpus, gpu_share=share / _WHOLE if gpus else 1.0, nodes=tuple(nodes)
        )

    def release(self, placement: Placement) -> None:
        """Take back what a task held."""
        self._cores = sorted((*self._cores, *placement.cores))
        self._nodes = sorted((*self._nodes, *placement.nodes))
        for gpu in placement.gpus:
            self._gpus[gpu] += round(placement.gpu_share * _WHOLE)

    def _wanted(self, need: Need) -> tuple[int, int, int]:
        """Cores of this machine, parts of its devices, and other nodes that a task with this need gets."""
        if need.nodes > 1 and self._num_nodes:  # whole nodes; this one only if it needs all of them
            return self._num_cores if need.nodes > self._num_nodes else 0, 0, min(need.nodes, self._num_nodes)
        here = need.on_each_of(min(need.nodes, self._shared_nodes))
        cores = self._num_cores if need.is_exclusive else min(here.cores, self._num_cores)
        return cores, _parts(here), 0

    def _has_devices(self, parts: int) -> bool:
        if not parts:
            return True
        share = min(parts, _WHOLE)
        return sum(free >= share for free in self._gpus.values()) >= _num_devices(parts)

    def _chosen_devices(self, parts: int) -> tuple[str, ...]:
        """Devices for a task; for a share the fullest one that has room, so that others stay free as a whole."""
        if not parts:
            return ()
        share = min(parts, _WHOLE)
        having = [gpu for gpu, free in self._gpus.items() if free >= share]
        having.sort(key=self._gpus.__getitem__)
        return tuple(having[: _num_devices(parts)])


def _parts(need: Need) -> int:
    return max(1, round(need.gpus * _WHOLE)) if 0 < need.gpus < 1 else math.ceil(need.gpus) * _WHOLE


def _num_devices(parts: int) -> int:
    return max(1, parts // _WHOLE)


def num_at_once(need: Need, *, num_cores: int, num_gpus: int) -> int:
    """How many tasks with this need a machine can run at a time; 0 if it never can."""
    by_cores = 1 if need.is_exclusive or need.nodes > 1 else max(1, num_cores // need.cores)
    parts = _parts(need.on_each_of(need.nodes))
    if not parts:
        return by_cores
    by_gpus = num_gpus * (_WHOLE // parts) if parts < _WHOLE else num_gpus // _num_devices(parts)
    return min(by_cores, by_gpus)


class QueueRoom:
    """The offers that the workers of a queue can still take: for each need, as many wait as they can run at once."""

    def __init__(self, workers: Collection[tuple[int, int]], waiting: Iterable[Need] = ()) -> None:
        """`workers`: cores and GPUs of each; without any, everything fits. `waiting`: the needs of what is offered."""
        self._workers, self._num_waiting = workers, Counter(waiting)
        self._num_at_once: dict[Need, int] = {}

    def fits(self, need: Need, waiting: Need | None = None) -> bool:
        if need == ONE_CORE or not self._workers:
            return True
        return self._num_waiting[need] < self._at_once(need)

    def add(self, need: Need) -> None:
        """Count one more offer."""
        self._num_waiting[need] += 1

    def lacks(self, need: Need) -> bool:
        """Return whether none of the workers can ever run a task with this need."""
        return bool(self._workers) and not self._at_once(need)

    def _at_once(self, need: Need) -> int:
        if need not in self._num_at_once:
            self._num_at_once[need] = sum(
                num_at_once(need, num_cores=cores, num_gpus=gpus) for cores, gpus in self._workers
            )
        return self._num_at_once[need]


def lacking(step: str, need: Need, queue: str) -> str:
    """Why a step waits although its queue has workers."""
    return f"step '{step}' needs {need}; no worker of queue {queue} has {'it' if need.gpus <= 1 else 'them'}"
