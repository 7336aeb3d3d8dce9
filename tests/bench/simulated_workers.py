"""Thousands of workers that only answer, in one process: they take messages and offers, wait, and report.

python simulated_workers.py SLOTS TASK_S LOG [--told-s S] [--alone]

What they do to the broker and to Redis is what real workers do; of a chunk, they run nothing. Many commands travel at
once, so that thousands of slots take a part of one core; with --alone each command travels by itself, as those of real
workers do, which costs Redis more. Every second a line of JSON goes to LOG.
"""

from __future__ import annotations

import argparse
import base64
import heapq
import json
import random
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from merlin.base.records import to_plain
from merlin.config.load import require_config
from merlin.config.model import Config
from merlin.execution.distributed import names
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.leaving import lease_s
from merlin.execution.distributed.messages import seal_report
from merlin.execution.distributed.owners import ASKS_PER_S
from merlin.execution.distributed.queues import redis_lists
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.registry import BEAT_S, WorkerInfo
from merlin.execution.distributed.scripts import Scripts, _text
from merlin.execution.distributed.upkeep import TICK_S
from merlin.execution.wire import received
from merlin.plan.pieces import num_tasks
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import Chunk, ChunkResult, Outcome

SLOTS_PER_WORKER = 32
PAUSE_S = 0.002  # between two looks, when there is nothing to do
MOST = 500  # chunks that end in one step
REPORT_S = 1.0
SPREAD = 0.2  # chunks take so much longer or shorter than they should


@dataclass(order=True)
class Running:
    """A chunk in a slot."""

    end: float
    began: float
    lease: str
    study: str = field(compare=False)
    chunk: Chunk = field(compare=False)
    worker: int = field(compare=False)


@dataclass
class Tally:
    """What happened since the last line in the log."""

    began: float
    results: int = 0
    tasks: int = 0
    busy_s: float = 0.0  # of chunks that have ended; less what counted already
    lost: int = 0


class Alone:
    """Looks like a pipeline; every command travels by itself."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._replies: list[Any] = []

    def __getattr__(self, command: str) -> Callable[..., None]:
        ask = getattr(self._client, command)
        return lambda *args, **options: self._replies.append(ask(*args, **options))

    def execute(self) -> list[Any]:
        return self._replies


class Crowd:
    """The workers of one queue, on Redis as broker and as backend."""

    def __init__(
        self, config: Config, num_slots: int, task_s: float, told_s: float, alone: bool, log: Path
    ) -> None:
        self._config, self._task_s, self._told_s, self._alone, self._log = config, task_s, told_s, alone, log
        self._client = make_client(config.backend)
        self._registry = RedisBackend(config, self._client, lease_s=lease_s()).registry
        self._lease_ms = int(1000 * lease_s())
        full = config.queue_name("merlin")
        self._lists = [redis_lists(full)[p // 3] for p in sorted(names.PRIORITIES["redis"].values())]
        sizes = [min(SLOTS_PER_WORKER, num_slots - at) for at in range(0, num_slots, SLOTS_PER_WORKER)]
        self._workers = [_worker(k, size, full) for k, size in enumerate(sizes)]
        self._num_slots, self._random = num_slots, random.Random(0)
        self._idle = deque(worker for worker, size in enumerate(sizes) for _ in range(size))
        self._running: list[Running] = []
        self._held: list[dict[str, str]] = [{} for _ in sizes]  # by worker: lease -> study
        self._sha = {
            name: self._client.script_load(_text(name)) for name in ("take", "renew", "settle", "own")
        }
        self._keys: dict[str, list[str]] = {}
        now = time.monotonic()
        self._due = [  # housekeeping of the workers, spread over time: (when, what, worker)
            (now + every * k / len(sizes), every, what, k)
            for what, every in (("beat", BEAT_S), ("inbox", TICK_S), ("renew", lease_s() / 4))
            for k in range(len(sizes))
        ]
        self._due += [(now, max(1.0 / len(sizes), 1 / ASKS_PER_S), "ask", 0)]
        heapq.heapify(self._due)
        self._tally = Tally(now)

    def serve(self) -> None:
        """Until the process is ended."""
        for worker in self._workers:
            self._registry.beat(worker)
        while True:
            now = time.monotonic()
            if now - self._tally.began >= REPORT_S:
                self._tell(now)
            if not self._step(now):
                time.sleep(PAUSE_S)

    def _step(self, now: float) -> bool:
        """False if nothing happened."""
        pipe = self._pipe()
        ended = self._end_chunks(pipe, now)
        asked = self._ask_for_messages(pipe)
        num_chores = self._keep_house(pipe, now)
        if not (ended or asked or num_chores):
            return False
        replies = pipe.execute()
        for run, verdict in zip(ended, replies[1 : 2 * len(ended) : 2], strict=True):
            self._tally.lost += verdict != "held"
            self._idle.append(run.worker)
        found = [message for got in replies[2 * len(ended) :][:asked] for message in got or ()]
        self._take(found)
        return bool(ended or found)

    # ------------------------------------------------------------------ chunks

    def _end_chunks(self, pipe: Any, now: float) -> list[Running]:
        """May I commit? Then the report."""
        ended = []
        while self._running and self._running[0].end <= now and len(ended) < MOST:
            run = heapq.heappop(self._running)
            ended.append(run)
            self._script(pipe, "renew", run.study, self._lease_ms, run.lease)
            self._script(pipe, "settle", run.study, run.lease, self._report(run))
            del self._held[run.worker][run.lease]
            self._tally.results += 1
            self._tally.tasks += num_tasks(run.chunk)
            self._tally.busy_s += max(0.0, run.end - max(run.began, self._tally.began))
        return ended

    def _report(self, run: Running) -> str:
        chunk = run.chunk
        result = ChunkResult(
            chunk=chunk,
            runs=((chunk.lo, chunk.hi, int(Outcome.OK)),),
            busy_s=num_tasks(chunk) * self._told_s if self._told_s else run.end - run.began,
        )
        report = ChunkReport(chunk=chunk, worker=self._workers[run.worker].name, result=result)
        return seal_report(report, run.study, self._config.key)

    def _ask_for_messages(self, pipe: Any) -> int:
        """Number of replies."""
        if not self._idle:
            return 0
        for key in self._lists:  # more than there are slots for would be in the way of others
            pipe.rpop(key, max(1, min(MOST, len(self._idle)) // len(self._lists)))
        return len(self._lists)

    def _take(self, messages: list[str]) -> None:
        """Take the offers of which these messages tell."""
        if not messages:
            return
        pipe = self._pipe()
        notices = [_notice(message) for message in messages]
        workers = [self._idle.popleft() for _ in notices]
        for notice, worker in zip(notices, workers, strict=True):
            self._script(
                pipe, "take", notice["study"], notice["lease"], secrets.token_hex(4), self._workers[worker].name,
                self._lease_ms,
            )  # fmt: skip
        replies = pipe.execute()
        now = time.monotonic()
        for notice, worker, reply in zip(notices, workers, replies, strict=True):
            if reply[0] != "chunk":
                self._idle.append(worker)
                continue
            body = json.loads(json.loads(reply[1])["body"])
            chunk, study = received(body["chunk"], Chunk), notice["study"]
            end = now + num_tasks(chunk) * self._task_s * self._random.uniform(1 - SPREAD, 1 + SPREAD)
            heapq.heappush(self._running, Running(end, now, chunk.lease, study, chunk, worker))
            self._held[worker][chunk.lease] = study

    def _pipe(self) -> Any:
        return Alone(self._client) if self._alone else self._client.pipeline(transaction=False)

    def _script(self, pipe: Any, name: str, study: str, *args: str | int) -> None:
        keys = self._keys.get(study)
        if keys is None:
            scripts = Scripts(self._client, self._config.namespace, study)
            keys = self._keys[study] = list(scripts.keys.values())
        pipe.evalsha(self._sha[name], len(keys), *keys, *args)

    # ------------------------------------------------------------ housekeeping

    def _keep_house(self, pipe: Any, now: float) -> int:
        num = 0
        while self._due[0][0] <= now:
            _, every, what, worker = heapq.heappop(self._due)
            num += 1
            match what:
                case "beat":
                    self._beat(pipe, worker)
                case "inbox":
                    key = names.Keys(self._config.namespace).inbox(self._workers[worker].name)
                    pipe.lrange(key, 0, -1)
                    pipe.delete(key)
                case "renew":
                    self._renew(pipe, worker)
                case "ask":
                    for study in self._keys:  # by one who is not the owner, and will not be
                        self._script(pipe, "own", study, "nobody", "none", 1, 0)
            heapq.heappush(self._due, (now + every, every, what, worker))
        return num

    def _beat(self, pipe: Any, worker: int) -> None:
        info = self._workers[worker]
        data = to_plain(info)
        del data["last_beat"], data["age_s"]
        pipe.hset(names.Keys(self._config.namespace).workers, info.name, json.dumps(data))
        pipe.zadd(names.Keys(self._config.namespace).beats, {info.name: time.time()})

    def _renew(self, pipe: Any, worker: int) -> None:
        by_study: dict[str, list[str]] = {}
        for lease, study in self._held[worker].items():
            by_study.setdefault(study, []).append(lease)
        for study, leases in by_study.items():
            self._script(pipe, "renew", study, self._lease_ms, *leases)

    # ------------------------------------------------------------------- the log

    def _tell(self, now: float) -> None:
        tally, took = self._tally, now - self._tally.began
        running_s = sum(max(0.0, min(now, run.end) - max(run.began, tally.began)) for run in self._running)
        late = sum(run.end < now for run in self._running)
        line = {
            "at": now,
            "busy": (tally.busy_s + running_s) / (took * self._num_slots),
            "running": len(self._running),
            "late": late,
            "results": tally.results,
            "tasks": tally.tasks,
            "lost": tally.lost,
            "took_s": took,
            "cpu_s": time.process_time(),
        }
        with self._log.open("a") as log:
            log.write(json.dumps(line) + "\n")
        self._tally = Tally(now)


def _worker(number: int, num_slots: int, queue: str) -> WorkerInfo:
    return WorkerInfo(
        name=f"simulated-{number}", host=f"node{number}", pid=number, queues=[queue], concurrency=num_slots,
        started=time.time(), version="simulated",
    )  # fmt: skip


def _notice(message: str) -> dict[str, Any]:
    """What a message says; nobody but us writes here, so that its seal is not looked at."""
    ((envelope,), _, _) = json.loads(base64.b64decode(json.loads(message)["body"]))
    return dict(json.loads(envelope["body"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("slots", type=int)
    parser.add_argument("task_s", type=float)
    parser.add_argument("log", type=Path)
    parser.add_argument("--told-s", type=float, default=0.0, help="what reports say of a task's time")
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    Crowd(require_config(), args.slots, args.task_s, args.told_s, args.alone, args.log).serve()


if __name__ == "__main__":
    main()
