"""Who works for this user, and on what: the workers' beats, the studies' advertisements, and commands to workers.

Commands and advertisements are sealed with the user's key; beats are only shown to people and counted.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from merlin.config.seal import seal, unseal
from merlin.errors import ForgedMessageError
from merlin.execution.distributed import names
from merlin.execution.distributed.connect import redis_errors, server_time

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config

BEAT_S = 5.0
SILENT_S = 20.0  # a worker that has not been heard of for so long is not alive
FORGET_S = 3600.0
COMMAND_S = 60.0  # a command is valid for so long

Op = Literal["stop", "stop_now", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChunk:
    """A chunk that a worker runs."""

    study: str  # study id
    instance: str
    lo: int
    hi: int
    since: float  # server time, epoch seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it describes itself, and when it was last heard of."""

    name: str
    host: str
    pid: int
    queues: list[str]  # names on the broker
    concurrency: int  # chunks at a time
    started: float  # epoch seconds, server time
    version: str
    last_beat: float = 0.0  # epoch seconds, server time
    age_s: float = 0.0  # since the last beat
    is_stopping: bool = False
    running: list[RunningChunk] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.age_s < SILENT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """A study that is not over."""

    study_id: str
    name: str
    workspace: str
    plan: str  # digest
    queues: list[str]  # names in the spec
    session: str
    published: float  # epoch seconds, server time


class Registry:
    """The user's part of the backend that is not one study's progress. Raises ExecutionError from every method."""

    def __init__(self, client: Redis, config: Config) -> None:
        self._client, self._config = client, config
        self._namespace = config.namespace

    # ---------------------------------------------------------------- workers

    def beat(self, worker: WorkerInfo) -> float:
        """Say that the worker lives, and what it does; returns the server's time."""
        with redis_errors(self._config.backend):
            now = server_time(self._client)
            data = asdict(worker)
            del data["last_beat"], data["age_s"]
            pipe = self._client.pipeline()
            pipe.hset(names.workers_key(self._namespace), worker.name, json.dumps(data))
            pipe.zadd(names.beats_key(self._namespace), {worker.name: now})
            pipe.execute()
            return now

    def leave(self, name: str) -> None:
        """The worker has ended."""
        with redis_errors(self._config.backend):
            pipe = self._client.pipeline()
            pipe.hdel(names.workers_key(self._namespace), name)
            pipe.zrem(names.beats_key(self._namespace), name)
            pipe.delete(names.inbox_key(self._namespace, name))
            pipe.execute()

    def workers(self, *, all: bool = False) -> list[WorkerInfo]:
        """The live workers, by name; with `all`, those that fell silent within the hour, too."""
        with redis_errors(self._config.backend):
            now = server_time(self._client)
            pipe = self._client.pipeline()
            pipe.zrange(names.beats_key(self._namespace), 0, -1, withscores=True)
            pipe.hgetall(names.workers_key(self._namespace))
            beats, texts = pipe.execute()
            found: list[WorkerInfo] = []
            for name, beat in sorted(beats):
                if now - beat > FORGET_S or name not in texts:
                    self.leave(name)
                    continue
                worker = _worker(texts[name], beat, now)
                if worker is not None and (all or worker.is_alive):
                    found.append(worker)
            return found

    def num_slots(self) -> int:
        """Chunks that all live workers run at a time."""
        return sum(w.concurrency for w in self.workers() if not w.is_stopping)

    # --------------------------------------------------------------- commands

    def send(self, worker_names: Iterable[str] | None, op: Op, **more: Any) -> list[str]:
        """Give a command to workers (to all live ones); returns their names.

        `stop`: end after what runs now; `stop_now`: interrupt what runs, then end; `drop` (study=id): kill what
        runs of a study and forget it.
        """
        chosen = [w.name for w in self.workers()] if worker_names is None else list(worker_names)
        with redis_errors(self._config.backend):
            until = server_time(self._client) + COMMAND_S
            pipe = self._client.pipeline()
            for name in chosen:
                body = {"op": op, "to": name, "until": until, "id": secrets.token_hex(8), **more}
                key = names.inbox_key(self._namespace, name)
                pipe.rpush(key, json.dumps(seal(body, self._config.key)))
                pipe.expire(key, int(COMMAND_S))
            pipe.execute()
        return chosen

    def receive(self, name: str) -> tuple[list[dict[str, Any]], int]:
        """The commands to a worker that have arrived, and how many were refused."""
        with redis_errors(self._config.backend):
            key = names.inbox_key(self._namespace, name)
            pipe = self._client.pipeline()
            pipe.lrange(key, 0, -1)
            pipe.delete(key)
            texts = pipe.execute()[0]
            if not texts:
                return [], 0
            now = server_time(self._client)
        commands: list[dict[str, Any]] = []
        for text in texts:
            try:
                body = unseal(json.loads(text), self._config.key)
            except (ForgedMessageError, ValueError):
                continue
            if body.get("to") == name and "id" in body and float(body.get("until", 0)) >= now:
                commands.append(body)
        return commands, len(texts) - len(commands)

    # ---------------------------------------------------------------- studies

    def advertise(self, study: StudyInfo) -> None:
        """From now on workers look after the study, even if its messages are lost."""
        with redis_errors(self._config.backend):
            envelope = json.dumps(seal(asdict(study), self._config.key))
            self._client.hset(names.studies_key(self._namespace), study.study_id, envelope)

    def withdraw(self, study_id: str) -> bool:
        """The study is over; True for the one caller that says so first."""
        with redis_errors(self._config.backend):
            return bool(self._client.hdel(names.studies_key(self._namespace), study_id))

    def studies(self) -> list[StudyInfo]:
        """The studies that are not over; what is not sealed with our key is left out."""
        with redis_errors(self._config.backend):
            texts = self._client.hgetall(names.studies_key(self._namespace))
        found: list[StudyInfo] = []
        for text in texts.values():
            try:
                found.append(StudyInfo(**unseal(json.loads(text), self._config.key)))
            except (ForgedMessageError, ValueError, TypeError):
                continue
        return sorted(found, key=lambda s: s.published)

    # --------------------------------------------------------------- counters

    def count(self, name: str, num: int = 1) -> None:
        """Count something that belongs to no study, such as refused messages."""
        with redis_errors(self._config.backend):
            self._client.hincrby(names.counters_key(self._namespace), name, num)

    def counters(self) -> dict[str, int]:
        with redis_errors(self._config.backend):
            found = self._client.hgetall(names.counters_key(self._namespace))
        return {str(name): int(num) for name, num in found.items()}

    def sweep_lock(self, study_id: str, period_s: float) -> bool:
        """Whether this worker may sweep the study now; one in `period_s` may."""
        with redis_errors(self._config.backend):
            key = names.sweep_key(self._namespace, study_id)
            return bool(self._client.set(key, "1", nx=True, px=max(1, int(period_s * 1000))))


def _worker(text: str, beat: float, now: float) -> WorkerInfo | None:
    """None for one that describes itself in a way that this version does not know."""
    try:
        data = json.loads(text)
        data["running"] = [RunningChunk(**r) for r in data["running"]]
        return WorkerInfo(**data, last_beat=beat, age_s=max(0.0, now - beat))
    except (ValueError, LookupError, TypeError):
        return None
