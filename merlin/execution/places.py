"""Which cores and GPUs the chunks of this process have, in agreement with the other workers of the machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from merlin.base.files import make_private
from merlin.base.locks import LockTaken, locked
from merlin.errors import NotHereError
from merlin.execution.assignment import Assignment
from merlin.execution.machine import Machine, whole_allocation
from merlin.plan.fit import ONE_CORE, Capacity, Placement, need_of, needs_of
from merlin.plan.plan import Plan, StepInstance, StepKind

MEMORY = Path("/dev/shm")  # a directory of this machine, the same one for all of its processes
_OPEN_MPI = {  # it would bind the processes of every task to the same first cores
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


class Places:
    """The capacity of this machine, and what each chunk holds of it. Threads may share it."""

    def __init__(self, machine: Machine, num_slots: int, locks: Path | None = None) -> None:
        """`locks`: the directory in which the processes of this user agree on cores."""
        self.room = Capacity(
            machine.cores,
            machine.gpus,
            machine.other_nodes,
            num_slots=num_slots,
            shared_nodes=1 if machine.other_nodes else machine.num_nodes,
        )
        self._cores, self._gpus, self._variables = machine.cores, machine.gpus, machine.gpu_variables
        self._side_by_side = machine.side_by_side
        self._locks = locks or MEMORY / f"merlin-{os.getuid()}"
        self._held: dict[str, tuple[Placement, ExitStack]] = {}  # by lease
        self._lock = threading.Lock()

    def check(self, instances: Iterable[StepInstance]) -> list[str]:
        """What users should know about tasks that get fewer cores than they ask for, by step.

        Raises NotHereError for tasks that can never run here.
        """
        notes: dict[str, str] = {}
        for instance in instances:
            need, cores = need_of(instance), len(set(self._cores))
            if self.room.lacks(need):
                have = f"only {', '.join(self._gpus)}" if self._gpus else "none"
                raise NotHereError(
                    f"step '{instance.step}' needs {need} for each task, and this machine has {have} "
                    f"({self._variables[0]} says which ones): run the study where they are, or ask for fewer"
                )
            if self.room.is_short_of_cores(need):
                notes[instance.step] = (
                    f"step '{instance.step}' asks for {need.cores:,} cores for each task; this machine has {cores}: "
                    "its tasks run one after the other, each with all of them"
                )
        return list(notes.values())

    def assign(self, lease: str, instance: StepInstance) -> Assignment:
        """Give a chunk what its tasks need. Raises ValueError if it does not fit."""
        need = need_of(instance)
        with self._lock:
            placement, stack = self.room.place(need), ExitStack()
            is_spread = self.room.spreads(need)
            cores = self._pinned(placement.cores, stack) if need.is_pinned and not is_spread else ()
            self._held[lease] = placement, stack
        gpus = () if is_spread else placement.gpus
        variables = dict.fromkeys(self._variables, ",".join(gpus)) if gpus else {}
        if not need.is_exclusive:
            variables |= self._side_by_side
        if cores:
            variables |= {name: value for name, value in _OPEN_MPI.items() if name not in os.environ}
        return Assignment(
            cores=cores,
            gpus=gpus,
            keeps_gpus=bool(gpus) and instance.kind is StepKind.FUNCTION,
            variables=variables,
        )

    def release(self, lease: str) -> None:
        """The chunk has ended; does nothing for one that holds nothing."""
        with self._lock:
            if held := self._held.pop(lease, None):
                self.room.release(held[0])
                held[1].close()

    def _pinned(self, cores: Collection[int], stack: ExitStack) -> tuple[int, ...]:
        """These cores, or others in place of those that another process has locked; () if there are not enough."""
        num, chosen = len(set(cores)), set[int]()
        with suppress(OSError):
            make_private(self._locks)
            for core in dict.fromkeys((*cores, *self._cores)):
                if len(chosen) < num:
                    with suppress(LockTaken):
                        stack.enter_context(locked(self._locks / f"core-{core}", required=True))
                        chosen.add(core)
        if len(chosen) < num:
            stack.close()
            return ()
        return tuple(sorted(chosen))


def places_for(plan: Plan, environment: Mapping[str, str], num_slots: int) -> Places | None:
    """The places of a run on this machine; None if every task needs one core, which is what `num_slots` is about."""
    machine = whole_allocation(environment)
    if set(needs_of(plan).values()) <= {ONE_CORE} and not machine.side_by_side:
        return None
    return Places(machine, num_slots)
