"""How many tasks the next chunk of a step instance gets: learned from the chunks that have ended."""

from __future__ import annotations

from msgspec import Struct

from merlin.plan.plan import StepInstance, StepKind

GROWTH = 8  # a chunk is at most this many times as large as the largest that has ended
MAX_CMD_TASKS = 5_000
MAX_FUNCTION_TASKS = 200_000
LEAST_S = 0.05  # of work per chunk, even when few tasks are left; more with many workers
DECAY = 0.5  # weight of what was known before, per chunk


class StepPace(Struct):
    """Seconds per task in the chunks of a step that ended last, by the slowest: what a new instance may need."""

    per_task_s: float = 0.0  # unknown

    def learn(self, num_tasks: int, busy_s: float) -> None:
        """Take in a chunk that has ended, of whichever instance."""
        self.per_task_s = max(busy_s / num_tasks, self.per_task_s * DECAY, 1e-9)


class ChunkSizer:
    """Aims at some seconds of work per chunk; starts small, and shrinks again when the tasks run out.

    The estimate is busy seconds over tasks, both decayed per chunk, so that chunks with many tasks outweigh
    the first small ones, which also pay for imports and shell starts.
    """

    __slots__ = ("_busy_s", "_is_fixed", "_num_tasks", "_per_task_s", "_step", "_trusted", "limit", "size")

    def __init__(
        self, instance: StepInstance, fixed: int | None = None, step: StepPace | None = None
    ) -> None:
        """With `fixed`, all chunks have that many tasks. `step` is shared by the instances of a step."""
        self._step = step or StepPace()
        self._busy_s = 0.0
        self._num_tasks = 0.0
        self._per_task_s = 0.0  # unknown
        first, self.limit = {
            StepKind.CMD: (1, MAX_CMD_TASKS),
            StepKind.FUNCTION: (64, MAX_FUNCTION_TASKS),
        }.get(instance.kind, (1, 1))
        self._is_fixed = fixed is not None
        if fixed is not None:
            first = self.limit = fixed
        self.size = first
        # tasks of a first chunk if those of other instances are fast; a script that is slow here runs alone
        self._trusted = GROWTH * first if instance.kind is StepKind.FUNCTION else first

    def learn(self, num_tasks: int, busy_s: float, target_s: float) -> None:
        """Take in a chunk that has ended; the next ones are to take `target_s`."""
        if num_tasks <= 0 or self._is_fixed:
            return
        self._step.learn(num_tasks, busy_s)
        self._busy_s = self._busy_s * DECAY + busy_s
        self._num_tasks = self._num_tasks * DECAY + num_tasks
        self._per_task_s = max(self._busy_s / self._num_tasks, 1e-9)
        ideal = max(1, min(self.limit, int(target_s / self._per_task_s)))
        self.size = ideal if ideal <= self.size else max(self.size, min(ideal, GROWTH * num_tasks))

    def next_size(
        self, num_left: int, num_workers: int, least_s: float = LEAST_S, num_elsewhere: int = 0
    ) -> int:
        """The number of tasks of the next chunk when `num_left` have not been handed out: fewer when few are left.

        `num_elsewhere`: tasks of other instances that the workers could run now.
        """
        if self._is_fixed:
            return self.size
        share = -(-num_left // (2 * num_workers))
        per_task_s = self._per_task_s or self._step.per_task_s
        least = int(least_s / per_task_s) if per_task_s else 1
        # what is left may take longer: each worker gets some
        least = min(least, -(-(num_left + num_elsewhere) // num_workers))
        most = self.size
        if not self._per_task_s:  # this instance may be slower than others: they are trusted only so far
            least = min(least, GROWTH * share)
            most = max(most, min(least, self._trusted))
        return max(1, min(most, max(share, least)))
