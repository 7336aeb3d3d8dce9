"""The contract of `Progress`, on the scheduler in memory and on Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from servers import RedisServer

from merlin.execution.distributed.redis_progress import RedisProgress
from merlin.study.plan import Plan
from merlin.study.progress import Progress
from merlin.study.runs import RunMap
from merlin.study.schedule import Scheduler
from merlin.testing import redis_check
from merlin.testing.progress import LEASE_S, ProgressContract


class TestScheduler(ProgressContract):
    def make(
        self, plan: Plan, outcomes: Mapping[str, RunMap], *, num_workers: int = 2, first_attempt: int = 1
    ) -> Progress:
        return Scheduler(
            plan, outcomes, num_workers=num_workers, first_attempt=first_attempt, lease_s=LEASE_S
        )

    def check(self, progress: Any) -> None:
        progress.check()

    def num_runs(self, progress: Any) -> int:
        return sum(state.tasks.num_runs for state in progress._states.values())


class TestRedis(ProgressContract):
    @pytest.fixture(autouse=True)
    def _server(self, any_redis: RedisServer) -> Any:
        with any_redis.client() as self.client:
            yield

    def make(
        self, plan: Plan, outcomes: Mapping[str, RunMap], *, num_workers: int = 2, first_attempt: int = 1
    ) -> Progress:
        self.plan = plan
        made = RedisProgress(self.client, "test", plan, lease_s=LEASE_S, target_s=1.5, clock="caller")
        made.open(outcomes, session="one", first_attempt=first_attempt, num_workers_hint=num_workers, now=0.0)
        return made

    def check(self, progress: Any) -> None:
        redis_check.check(progress, self.client, self.plan)

    def num_runs(self, progress: Any) -> int:
        return int(self.client.zcard(progress.keys[3]))
