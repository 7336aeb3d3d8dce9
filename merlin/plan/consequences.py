"""What follows from the ends of tasks: others become ready, or are skipped, and so on downstream."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from merlin.plan.backlog import Backlog
from merlin.plan.pieces import shards_over
from merlin.plan.readiness import decided
from merlin.plan.task_states import READY, WAITING, InstanceState, SourceGroup
from merlin.plan.tasks import ENDED, Outcome


class DecidedOutcome(Struct, frozen=True, kw_only=True):
    """An outcome that no worker reports, so the executor must write it into the ledger."""

    instance: str
    lo: int
    hi: int
    outcome: Outcome  # SKIPPED, or FAILED for a task that keeps killing its worker
    cause: str
    attempt: int = 1
    tail: str = ""  # what its worker said when it died


class Consequences:
    """Moves tasks between states as what they depend on ends; what becomes ready goes to the backlog."""

    def __init__(self, states: Mapping[str, InstanceState], backlog: Backlog, first_attempt: int) -> None:
        self.ended: set[str] = set()  # instances whose end has been passed on to their targets
        self._backlog = backlog
        self._first_attempt = first_attempt
        self._decided: list[DecidedOutcome] = []
        self._changed: deque[tuple[InstanceState, int, int]] = deque()
        for state in states.values():
            self._start(state)
        self.propagate()

    def decided_outcomes(self) -> list[DecidedOutcome]:
        """Outcomes decided here since the last call, for the ledger."""
        out, self._decided = self._decided, []
        return out

    def decide(
        self,
        state: InstanceState,
        lo: int,
        hi: int,
        outcome: Outcome,
        cause: str,
        attempt: int,
        tail: str = "",
    ) -> None:
        """End the tasks [lo, hi) with an outcome that no worker reports."""
        state.move(lo, hi, int(outcome))
        self.note_change(state, lo, hi)
        last = self._decided[-1] if self._decided else None
        new = DecidedOutcome(
            instance=state.instance.id,
            lo=lo,
            hi=hi,
            outcome=outcome,
            cause=cause,
            attempt=attempt,
            tail=tail,
        )
        if last and last.hi == lo and replace(new, lo=last.lo) == replace(last, hi=hi):
            self._decided[-1] = replace(last, hi=hi)
        else:
            self._decided.append(new)

    # --------------------------------------------------------------- readiness

    def _start(self, state: InstanceState) -> None:
        """Apply what the ledger knows about one instance."""
        self._note_end(state)
        if not state.groups and state.num[WAITING]:
            self._evaluate(state, 0, state.instance.num_tasks)
        if any(state.num[outcome] for outcome in ENDED):
            self.note_change(state, 0, state.instance.num_tasks)

    def note_change(self, state: InstanceState, lo: int, hi: int) -> None:
        """Tasks in [lo, hi) have ended; scattered ends of one instance become one event over their hull."""
        if self._changed and self._changed[-1][0] is state:
            _, a, b = self._changed.pop()
            lo, hi = min(a, lo), max(b, hi)
        self._changed.append((state, lo, hi))

    def propagate(self) -> None:
        """Follow every change to what depends on it, and on."""
        while self._changed:
            state, lo, hi = self._changed.popleft()
            for target in state.same_targets:
                self._evaluate(target, lo, hi)
            for target in state.block_targets:
                self._evaluate(target, *shards_over(target.instance, state.instance, lo, hi))
            self._note_end(state)

    def _note_end(self, state: InstanceState) -> None:
        """If every task has ended, tell the groups that contain this instance as a source."""
        if state.is_ended and state.instance.id not in self.ended:
            self.ended.add(state.instance.id)
            for group in state.member_of:
                group.num_open -= 1
                self._close(group)

    def _close(self, group: SourceGroup) -> None:
        """After the end of a source: if it was the last of the group, decide whether the target may run."""
        if group.num_open:
            return
        target = group.target
        target.num_open_groups -= 1
        if not group.passes():
            cause = f"no task of '{group.name}', which it depends on, ended ok"
            for a, b in target.tasks.ranges((WAITING,)):
                self.decide(target, a, b, Outcome.SKIPPED, cause, self._first_attempt)
        elif target.num_open_groups == 0:
            self._evaluate(target, 0, target.instance.num_tasks)

    def _evaluate(self, target: InstanceState, lo: int, hi: int) -> None:
        """Move waiting tasks in [lo, hi) to ready or skipped, as their sources say."""
        for a, b, culprit in decided(target, lo, hi):
            if culprit:
                cause = f"a task of '{culprit}', which it depends on, did not end ok"
                self.decide(target, a, b, Outcome.SKIPPED, cause, self._first_attempt)
            elif target.num_open_groups == 0:
                target.move(a, b, READY)
        self._backlog.activate(target)
