"""The contracts on Redis. Most methods of leases and mailbox are one Lua script; see docs/mailbox-keys.md."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from merlin.errors import StudyGoneError
from merlin.execution.distributed.connect import server_time
from merlin.execution.distributed.contracts import MAX_LETTERS, Envelope, Letter, Offer, Standing
from merlin.execution.distributed.entries import DamagedEntries
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.scripts import Scripts

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config

OWNER_S = 4.0  # an owner without a renewal for this time is replaced
KEEP_LETTERS_S = 60.0  # for owners on machines that see the records of the ledger late
BATCH = 1000  # offers per script
# what Python raises for a malformed answer
_MALFORMED = (LookupError, TypeError, ValueError)
_NAME = "@.-_+:"  # characters of a worker's name that are not escaped


class RedisBackend:
    """Implements `contracts.Backend`; threads may share one."""

    def __init__(self, config: Config, client: Redis, *, lease_s: float, name: str = "") -> None:
        """`name` is the name of the worker that uses it."""
        self._name = name
        self._client, self._namespace, self._lease_s = client, config.namespace, lease_s
        self.registry = RedisRegistry(client, config)

    def leases(self, study_id: str) -> RedisLeases:
        return RedisLeases(self._client, self._namespace, study_id, lease_s=self._lease_s)

    def mailbox(self, study_id: str) -> RedisMailbox:
        return RedisMailbox(self._client, self._namespace, study_id, self._name)

    def time(self) -> float:
        return Scripts(self._client, self._namespace, "").call(lambda: server_time(self._client))


class RedisLeases:
    """Implements `contracts.Leases`; threads may share one."""

    def __init__(self, client: Redis, namespace: str, study_id: str, *, lease_s: float) -> None:
        self._scripts = Scripts(client, namespace, study_id)
        self._lease_ms = int(1000 * lease_s)

    def take(self, lease: str, worker: str) -> Envelope | None:
        reply = self._scripts.run(
            "take", lease, secrets.token_hex(4), quote(worker, safe=_NAME), self._lease_ms
        )
        return str(reply[1]) if reply[0] == "chunk" else None

    def renew(self, leases: Collection[str]) -> set[str]:
        return set(self._scripts.run("renew", self._lease_ms, *leases)[1:]) if leases else set()

    def settle(self, lease: str, report: Envelope) -> bool:
        return bool(self._scripts.run("settle", lease, report) == "held")


class RedisMailbox:
    """Implements `contracts.Mailbox`; one thread uses it."""

    def __init__(self, client: Redis, namespace: str, study_id: str, name: str) -> None:
        self._scripts = Scripts(client, namespace, study_id)
        self._client, self._key, self._name = client, self._scripts.keys, name
        self.damage = DamagedEntries()
        self._token = secrets.token_hex(8)
        self._beat = 0  # the server's count of our renewals

    # --------------------------------------------------------------- ownership

    def open(self, session: str, *, only_if_gone: bool = False) -> bool:
        token = secrets.token_hex(8)
        is_opened = bool(self._scripts.run("open", token, session, _ms(OWNER_S), int(only_if_gone)))
        if is_opened:
            self._token, self._beat = token, 0
        return is_opened

    def exists(self) -> bool:
        try:
            self._scripts.run("renew", 1)
        except StudyGoneError:
            return False
        return True

    def own(self, session: str, *, force: bool = False) -> Standing:
        reply = self._scripts.run("own", self._token, session, _ms(OWNER_S), int(force), self._name)
        with self._reporting_damage():
            if reply[0] == "over":
                return Standing(is_ours=False, now=reply[1] / 1000, is_over=True)
            if reply[0] == "held":
                return Standing(is_ours=False, now=reply[1] / 1000)
            self._check_beat(reply[3])
            return Standing(is_ours=True, now=reply[1] / 1000, read=reply[2])

    def renew(self) -> float:
        reply = self._scripts.run("renew_ownership", self._token, _ms(OWNER_S))
        with self._reporting_damage():
            self._check_beat(reply[2])
            return float(reply[1]) / 1000

    def _check_beat(self, beat: int) -> None:
        """Detect a server with old data, as after a restart. It has leases that have ended, so delete the study."""
        if beat <= self._beat:
            self.forget()
            raise StudyGoneError(f"Redis at {self._scripts.place} has gone back in time, as after a restart")
        self._beat = beat

    def holder(self) -> str:
        """The name of the worker that owns the study now; "" if none does. For display."""

        def ask() -> list[Any]:
            pipe = self._client.pipeline(transaction=False)
            pipe.hmget(self._key["owner"], "holder", "until")
            pipe.time()
            return list(pipe.execute())

        (holder, until), (seconds, _) = self._scripts.call(ask)
        with self._reporting_damage():
            return str(holder or "") if until and float(until) / 1000 > seconds else ""

    def release(self) -> None:
        self._scripts.run("release", self._token, 0)

    def close(self) -> None:
        self._scripts.run("release", self._token, 1)

    def drop(self) -> None:
        self._scripts.run("drop")

    def forget(self) -> None:
        self._scripts.call(lambda: self._client.delete(*self._key.values()))

    # ------------------------------------------------------------------ offers

    def offers(self) -> list[Offer]:
        def ask() -> list[Any]:
            pipe = self._client.pipeline(transaction=False)
            pipe.hgetall(self._key["offers"])
            pipe.hgetall(self._key["leases"])
            pipe.zrange(self._key["expiry"], 0, -1, withscores=True)
            pipe.time()
            return list(pipe.execute())

        offers, leases, expiry, (seconds, micros) = self._scripts.call(ask)
        now, ends = seconds + micros / 1e6, dict(expiry)
        with self._reporting_damage():
            found = [Offer(lease=k, envelope=e, since=at) for k, (at, e) in self._split(offers, 1)]
            for lease, (_, worker, at, envelope) in self._split(leases, 3):
                left_s = ends.get(lease, 0.0) / 1000 - now
                found.append(
                    Offer(lease=lease, envelope=envelope, since=at, worker=unquote(worker), expires_s=left_s)
                )
        return found

    def names(self) -> set[str]:
        def ask() -> list[Any]:  # an offer that is taken in between is in one of them
            return [*self._client.hkeys(self._key["offers"]), *self._client.hkeys(self._key["leases"])]

        return set(self._scripts.call(ask))

    def num_held(self) -> int:
        return self._scripts.call(lambda: int(self._client.hlen(self._key["leases"])))

    def _split(self, entries: Mapping[str, str], num_words: int) -> Iterator[tuple[str, list[Any]]]:
        """Split entries into the scripts' words and the envelope. The last word, a time in ms, becomes seconds."""
        for lease, text in entries.items():
            try:
                *words, envelope = text.split(" ", num_words)
                words[num_words - 1] = float(words[num_words - 1]) / 1000  # type: ignore[call-overload]
                yield lease, [*words, envelope]
            except _MALFORMED as error:
                self.damage.note(f"{self._key['leases']} {lease}", error)

    def offer(self, offers: Mapping[str, Envelope], read: str) -> None:
        entries = iter(offers.items())
        while True:
            batch = [word for entry in islice(entries, BATCH) for word in entry]
            self._scripts.run("offer", self._token, read or "0", _ms(KEEP_LETTERS_S), *batch)
            if len(batch) < 2 * BATCH:
                return

    def void(self, leases: Iterable[str]) -> None:
        rest = iter(leases)
        while batch := list(islice(rest, BATCH)):
            self._scripts.run("void", self._token, *batch)

    def expire(self) -> int:
        return int(self._scripts.run("expire", self._token))

    # ----------------------------------------------------------------- letters

    def letters(self, after: str = "", wait_s: float = 0.0) -> list[Letter]:
        while entries := self._entries(after, wait_s):
            if found := [letter for id, fields in entries if (letter := self._letter(id, dict(fields)))]:
                return found
            after = entries[-1][0]  # no valid letter among them
        return []

    def _entries(self, after: str, wait_s: float) -> list[Any]:
        block = _ms(wait_s) or None
        reply = self._scripts.call(
            lambda: self._client.xread({self._key["mail"]: after or "0"}, count=MAX_LETTERS, block=block)
        )
        with self._reporting_damage():
            found: Any = reply
            if isinstance(found, dict):  # the format of RESP3
                found = [[key, batches[0]] for key, batches in found.items()]
            return list(found[0][1]) if found else []

    def _letter(self, id: str, fields: dict[str, str]) -> Letter | None:
        """Decode a letter; None if it is not valid."""
        match fields:
            case {"taken": lease, "worker": worker}:
                return Letter(id=id, kind="taken", lease=lease, worker=unquote(worker))
            case {"report": lease, "text": text}:
                return Letter(id=id, kind="report", lease=lease, report=text)
            case {"expired": lease}:
                return Letter(id=id, kind="expired", lease=lease)
        self.damage.note(f"{self._key['mail']} {id}", f"it says {sorted(fields)}")
        return None

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except _MALFORMED as error:
            raise self._scripts.damaged(error) from error


def _ms(seconds: float) -> int:
    return int(1000 * seconds)
