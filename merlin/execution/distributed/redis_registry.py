"""The registry on Redis: the workers' beats, the studies' advertisements, and commands to workers.

Commands and advertisements are sealed with the user's key; beats are not, because they are only displayed and counted.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from merlin.base.records import as_kind, parsed, to_plain
from merlin.config.seal import seal, unseal
from merlin.errors import ForgedMessageError
from merlin.execution.distributed import names
from merlin.execution.distributed.connect import redis_errors, server_time
from merlin.execution.distributed.entries import DamagedEntries
from merlin.execution.distributed.registry import (
    COMMAND_S,
    SILENT_S,
    Command,
    Op,
    OpenWork,
    StudyInfo,
    WorkerInfo,
)

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config

FORGET_S = 3600.0
_REDIS_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DELETE_IF = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end
"""
P = ParamSpec("P")
T = TypeVar("T")


def retry_after_repair(
    method: Callable[Concatenate[RedisRegistry, P], T],
) -> Callable[Concatenate[RedisRegistry, P], T]:
    """Call the method again if a key had the wrong type, after that key was renamed."""

    @wraps(method)
    def called(self: RedisRegistry, /, *args: P.args, **options: P.kwargs) -> T:
        from redis import ResponseError

        with redis_errors(self._config.backend):
            try:
                return method(self, *args, **options)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
            self._rename_damaged()
            return method(self, *args, **options)

    return called


class RedisRegistry:
    """Implements `contracts.Registry`: the user's part of the backend that is not one study's.

    Every method raises ExecutionError if Redis does not answer or denies access. An entry that cannot be used is
    skipped, and a key of the wrong type is renamed; `damage` lists both.
    """

    def __init__(self, client: Redis, config: Config) -> None:
        self._client, self._config = client, config
        self._keys = keys = names.Keys(config.namespace)
        self._types = dict.fromkeys((keys.studies, keys.work, keys.workers, keys.counters), "hash")
        self._types[keys.beats] = "zset"
        self.damage = DamagedEntries()

    def _inbox(self, worker_name: str) -> str:
        key = self._keys.inbox(worker_name)
        self._types[key] = "list"
        return key

    def _rename_damaged(self) -> None:
        for key, kind in list(self._types.items()):
            found = str(self._client.type(key))
            if found not in (kind, "none"):
                self._client.rename(key, f"{key}:damaged")
                self.damage.note(key, f"it was a {found}; put aside as {key}:damaged")

    def _decoded(self, key: str, decode: Callable[[str, str], T]) -> dict[str, T]:
        """The entries of a hash; those that cannot be decoded are left out."""
        texts: Any = self._client.hgetall(key)
        found: dict[str, T] = {}
        for name, text in texts.items():
            try:
                found[name] = decode(name, text)
            except (ForgedMessageError, ValueError) as error:
                self.damage.note(f"{key} {name}", error)
        return found

    # ---------------------------------------------------------------- workers

    @retry_after_repair
    def beat(self, worker: WorkerInfo) -> float:
        data = to_plain(worker)
        del data["last_beat"], data["age_s"]
        now = server_time(self._client)
        pipe = self._client.pipeline()
        pipe.hset(self._keys.workers, worker.name, json.dumps(data))
        pipe.zadd(self._keys.beats, {worker.name: now})
        pipe.execute()
        return now

    @retry_after_repair
    def leave(self, *worker_names: str) -> None:
        if worker_names:
            pipe = self._client.pipeline()
            pipe.hdel(self._keys.workers, *worker_names)
            pipe.zrem(self._keys.beats, *worker_names)
            pipe.delete(*(self._keys.inbox(name) for name in worker_names))
            pipe.execute()

    @retry_after_repair
    def workers(self, *, all: bool = False) -> list[WorkerInfo]:
        now = server_time(self._client)
        pipe = self._client.pipeline()
        pipe.zrange(self._keys.beats, 0, -1, withscores=True)
        pipe.hgetall(self._keys.workers)
        beats, texts = pipe.execute()
        gone = {name for name, beat in beats if now - beat > FORGET_S or name not in texts}
        self.leave(*gone)
        found: list[WorkerInfo] = []
        for name, beat in sorted(beats):
            if name not in gone:
                try:
                    found.append(_worker(name, texts[name], beat, now))
                except (ValueError, TypeError) as error:
                    self.damage.note(f"{self._keys.workers} {name}", error)
        return [worker for worker in found if all or worker.is_alive]

    @retry_after_repair
    def num_workers(self, now: float) -> int:
        # workers of an earlier job have no recent beat
        return int(self._client.zcount(self._keys.beats, now - SILENT_S, "+inf"))

    # --------------------------------------------------------------- commands

    @retry_after_repair
    def send(self, /, worker_names: Iterable[str] | None, op: Op, **more: Any) -> list[str]:
        chosen = [w.name for w in self.workers()] if worker_names is None else list(worker_names)
        until = server_time(self._client) + COMMAND_S
        pipe = self._client.pipeline()
        for name in chosen:
            body = {"op": op, "to": name, "until": until, "id": secrets.token_hex(8), **more}
            key = self._inbox(name)
            pipe.rpush(key, json.dumps(seal(body, self._config.key)))
            pipe.expire(key, int(COMMAND_S))
        pipe.execute()
        return chosen

    @retry_after_repair
    def receive(self, name: str) -> tuple[list[Command], int]:
        key = self._inbox(name)
        pipe = self._client.pipeline()
        pipe.lrange(key, 0, -1)
        pipe.delete(key)
        texts = pipe.execute()[0]
        if not texts:
            return [], 0
        now = server_time(self._client)
        sealed: list[Command] = []
        for text in texts:
            with suppress(ForgedMessageError, ValueError):
                command = as_kind(self._unsealed(text), Command)
                if command.to == name:
                    sealed.append(command)
        return [command for command in sealed if command.until >= now], len(texts) - len(sealed)

    # ---------------------------------------------------------------- studies

    @retry_after_repair
    def advertise(self, study: StudyInfo) -> None:
        envelope = json.dumps(seal(to_plain(study), self._config.key))
        self._client.hdel(self._keys.work, study.study_id)  # of an earlier run
        self._client.hset(self._keys.studies, study.study_id, envelope)

    @retry_after_repair
    def withdraw(self, study_id: str, session: str = "") -> None:
        text = self._client.hget(self._keys.studies, study_id) if session else None
        if text is None:
            self._client.hdel(self._keys.studies, study_id)
            self._client.hdel(self._keys.work, study_id)
            return
        with suppress(ForgedMessageError, ValueError):
            if self._study(study_id, str(text)).session != session:
                return
        # only the entry that we read: a new run may have begun
        if self._client.eval(_DELETE_IF, 1, self._keys.studies, study_id, str(text)):
            self._client.hdel(self._keys.work, study_id)

    @retry_after_repair
    def studies(self) -> list[StudyInfo]:
        found = self._decoded(self._keys.studies, self._study)
        return sorted(found.values(), key=lambda s: s.published)

    @retry_after_repair
    def study_ids(self) -> set[str]:
        """The ids of the studies that are not over; a cheap question."""
        return {str(id) for id in self._client.hkeys(self._keys.studies)}

    def _unsealed(self, text: str) -> dict[str, Any]:
        return unseal(parsed(text), self._config.key)

    def _study(self, id: str, text: str) -> StudyInfo:
        """Decode an advertisement. Raises ForgedMessageError, ValueError."""
        study = as_kind(self._unsealed(text), StudyInfo)
        if study.study_id != id:
            raise ValueError("it is of another study")
        return study

    @retry_after_repair
    def publish_work(self, study_id: str, work: Sequence[OpenWork]) -> None:
        body = {"study": study_id, "work": [to_plain(entry) for entry in work]}
        self._client.hset(self._keys.work, study_id, json.dumps(seal(body, self._config.key)))

    @retry_after_repair
    def open_work(self) -> dict[str, list[OpenWork]]:
        open_studies = self.study_ids()
        found = self._decoded(self._keys.work, self._work)
        return {id: work for id, work in found.items() if id in open_studies}

    def _work(self, id: str, text: str) -> list[OpenWork]:
        """Decode what a study wants. Raises ForgedMessageError, ValueError."""
        body = self._unsealed(text)
        if body.get("study") != id:
            raise ValueError("it is of another study")
        return as_kind(body.get("work"), list[OpenWork])

    # --------------------------------------------------------------- counters

    @retry_after_repair
    def count(self, name: str, num: int = 1) -> None:
        from redis import ResponseError

        try:
            self._client.hincrby(self._keys.counters, name, num)
        except ResponseError as error:
            if "integer" not in str(error) and "overflow" not in str(error):
                raise
            self.damage.note(f"{self._keys.counters} {name}", error)
            self._client.hset(self._keys.counters, name, num)

    @retry_after_repair
    def counters(self) -> dict[str, int]:
        return self._decoded(self._keys.counters, lambda name, text: _counter(text))


def _counter(text: str) -> int:
    """A number as Redis itself reads it, which is stricter than Python: it can be counted on. Raises ValueError."""
    if not _REDIS_INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError("hash value is not an integer")
    return int(text)


def _worker(name: str, text: str, beat: float, now: float) -> WorkerInfo:
    """Decode a worker's description. Raises ValueError if this version cannot read it."""
    worker = as_kind(parsed(text), WorkerInfo)
    if worker.name != name:
        raise ValueError("it is of another worker")
    if beat > now + SILENT_S:
        raise ValueError("it is from the future")
    return replace(worker, last_beat=beat, age_s=max(0.0, now - beat))
