"""Leases, mailbox, registry and carrier: in memory, on Redis, on Redis behind RabbitMQ; and what servers do to them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from servers import HOST, RabbitServer, RedisServer
from waiting import wait_until

from merlin.config import model
from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.errors import (
    ExecutionError,
    RedisFullError,
    RedisUnreachableError,
    StudyGoneError,
)
from merlin.execution.distributed import names, redis_backend, redis_registry
from merlin.execution.distributed.app import make_app
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.contracts import Backend, Carrier, Leases, Mailbox
from merlin.execution.distributed.publish import make_carrier
from merlin.execution.distributed.queues import broker_queue
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.registry import StudyInfo
from merlin.execution.distributed.scripts import KEYS, Scripts
from merlin.testing.exchange import LEASE_S, SESSION, STUDY, ExchangeContract, letters_of, raised
from merlin.testing.memory import MemoryBackend, MemoryCarrier, MemoryServer


class TestMemory(ExchangeContract):
    def setup_method(self) -> None:
        self.server, self.carrier = MemoryServer(), MemoryCarrier()

    def make_backend(self) -> Backend:
        return MemoryBackend(self.server, lease_s=LEASE_S)

    def make_carrier(self) -> Carrier:
        return self.carrier

    def receive(self, queue: str) -> Mapping[str, str] | None:
        return self.carrier.receive(queue)

    def advance(self, seconds: float) -> None:
        self.server.advance(seconds)

    def test_letters_go_when_they_are_dealt_with_and_old(self) -> None:
        mailbox, leases = self.opened("a", "b", "c")
        for lease in "abc":
            leases.take(lease, "w")
            self.advance(1.0)
        read = mailbox.letters()[1].id
        mailbox.offer({}, read)
        assert len(mailbox.letters()) == 3, "not old yet"
        self.advance(1000.0)
        mailbox.offer({}, "0")
        assert len(mailbox.letters()) == 3, "not dealt with"
        mailbox.offer({}, read)
        assert [letter.lease for letter in mailbox.letters()] == ["b", "c"]


class OnRedis(ExchangeContract):
    config: Config
    redis: RedisServer

    def make_backend(self) -> Backend:
        return RedisBackend(self.config, make_client(self.config.backend), lease_s=LEASE_S)

    def make_carrier(self) -> Carrier:
        return make_carrier(self.config)

    def receive(self, queue: str) -> Mapping[str, str] | None:
        with make_app(self.config).connection_for_write() as connection:
            message = broker_queue(self.config, queue)(connection.default_channel)
            message.declare()
            found = message.get(no_ack=True)
            return None if found is None else found.payload[0][0]

    def advance(self, seconds: float) -> None:
        """Everything on the server is that much older."""
        with self.redis.client() as client:
            for key in client.scan_iter("merlin:*:owner"):
                if until := client.hget(key, "until"):
                    client.hset(key, "until", int(until) - int(1000 * seconds))
            for pattern, unit in (("merlin:*:expiry", 1000), ("merlin:*:beats", 1)):
                for key in client.scan_iter(pattern):
                    for member in client.zrange(key, 0, -1):
                        client.zincrby(key, -unit * seconds, member)


class TestRedis(OnRedis):
    @pytest.fixture(autouse=True)
    def server(self, any_redis: RedisServer, tmp_path: Path) -> None:
        self.redis, self.config = any_redis, config_for(any_redis, tmp_path)

    def test_letters_go_when_they_are_dealt_with_and_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mailbox, leases = self.opened(*map(str, range(1000)))
        for i in range(1000):
            leases.take(str(i), "w")
        letters = mailbox.letters()
        mailbox.offer({}, letters[-1].id)
        assert mailbox.letters() == letters, "not old yet"
        monkeypatch.setattr(redis_backend, "KEEP_LETTERS_S", 0.0)
        wait_until(lambda: self.make_backend().time() > int(letters[-1].id.split("-")[0]) / 1000 + 0.01)
        mailbox.offer({}, "0")
        assert mailbox.letters() == letters, "not dealt with"
        mailbox.offer({}, letters[600].id)
        left = mailbox.letters()
        assert len(left) < 1000  # Redis trims whole nodes of its tree
        assert left[-400:] == letters[-400:]

    def test_a_command_is_valid_for_a_while_and_for_one_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = self.make_backend().registry
        registry.send(["a"], "stop")
        with self.redis.client() as client:
            client.rename(names.Keys(self.config.namespace).inbox("a"), self.inbox("b"))
        assert registry.receive("b") == ([], 1)
        monkeypatch.setattr(redis_registry, "COMMAND_S", 1e-3)
        monkeypatch.setattr(redis_registry, "server_time", lambda client: 1000.0)
        with self.redis.client() as client:
            registry.send(["c"], "stop")
            monkeypatch.setattr(redis_registry, "server_time", lambda client: 1001.0)
            assert client.ttl(self.inbox("c")) <= 60
        assert not registry.receive("c")[0]

    def inbox(self, name: str) -> str:
        return names.Keys(self.config.namespace).inbox(name)

    def test_two_users_do_not_meet(self, tmp_path: Path) -> None:
        mailbox, _ = self.opened("a")
        (tmp_path / "them").mkdir()
        them = RedisBackend(config_for(self.redis, tmp_path / "them"), self.redis.client(), lease_s=LEASE_S)
        assert raised(StudyGoneError, lambda: them.leases(STUDY).take("a", "w"))
        assert them.mailbox(STUDY).open(SESSION, only_if_gone=True)
        assert mailbox.names() == {"a"}

    def test_nothing_but_the_documented_keys_is_written(self) -> None:
        root = Path(__file__).parents[2]
        text = (root / "docs" / "mailbox-keys.md").read_text(encoding="utf-8")
        scripts = {f.stem for f in (root / "merlin" / "execution" / "distributed" / "lua").glob("*.lua")}
        assert [name for name in {*KEYS, *scripts} if f"`{name}`" not in text] == []
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        with self.redis.client() as client:
            keys = client.keys("*")
            assert set(keys) == set(Scripts(client, self.config.namespace, STUDY).keys.values())
            mailbox.close()
            (left,) = client.keys("*")
            assert (client.hkeys(left), 0 < client.ttl(left) <= 3600) == (["over"], True)

    @pytest.mark.parametrize("name", KEYS)
    def test_a_server_that_evicts_a_key_tells_no_lies(self, name: str) -> None:
        """What is lost is gone, or lost, or held by nobody; nothing is taken twice."""
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        with self.redis.client() as client:
            client.delete(Scripts(client, self.config.namespace, STUDY).keys[name])
        match name:
            case "owner":
                self.expect_gone_for_workers(leases)
                assert self.make_backend().mailbox(STUDY).open("two", only_if_gone=True)
            case "offers":
                assert mailbox.names() == {"a"}
                assert leases.take("b", "w") is None
            case "leases":
                assert mailbox.names() == {"b"}
                assert leases.renew(["a"]) == {"a"}
            case "expiry":
                assert leases.renew(["a"]) == set()
                self.advance(2 * LEASE_S)
                assert self.new_owner().expire() == 1
            case "mail":
                assert mailbox.letters() == []
                assert leases.settle("a", "{}")
                assert letters_of(mailbox) == [("report", "a", "")]

    def expect_gone_for_workers(self, leases: Leases) -> None:
        calls = (
            lambda: leases.take("b", "w"),
            lambda: leases.renew(["a"]),
            lambda: leases.settle("a", "{}"),
        )
        assert all(raised(StudyGoneError, call) for call in calls)

    def test_scripts_that_the_server_has_forgotten_are_sent_again(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        with self.redis.client() as client:
            client.script_flush()
        assert leases.take("b", "w")
        mailbox.renew()

    def test_a_server_that_has_gone_back_in_time_is_noticed_by_the_owner(self) -> None:
        mailbox, leases = self.opened("a")
        mailbox.renew()
        with self.redis.client() as client:
            key = Scripts(client, self.config.namespace, STUDY).keys["owner"]
            before = client.hget(key, "beat")
            mailbox.renew()
            client.hset(key, "beat", int(before) - 1)
        assert raised(StudyGoneError, mailbox.renew)
        self.expect_gone(mailbox, leases)
        assert self.make_backend().mailbox(STUDY).open("two", only_if_gone=True)


class TestRedisBehindRabbitMQ(OnRedis):
    @pytest.fixture(autouse=True)
    def servers(self, any_redis: RedisServer, any_rabbit: RabbitServer, tmp_path: Path) -> None:
        self.redis, self.config = any_redis, config_for(any_redis, tmp_path, any_rabbit)

    def test_a_queue_that_the_user_may_not_use_is_refused_in_our_own_words(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model, "QUEUE_TAG", "amq.")  # nobody may declare these
        with pytest.raises(ExecutionError, match="RabbitMQ at"):
            self.make_carrier().send("q", [{"body": "{}"}])


def config_for(redis: RedisServer, home: Path, rabbit: RabbitServer | None = None) -> Config:
    broker = redis.url if rabbit is None else rabbit.url
    env = {"MERLIN_BROKER_URL": broker, "MERLIN_BACKEND_URL": redis.url, "HOME": str(home)}
    config = find_config(env)
    assert config is not None
    return config


# ------------------------------------------------------------- what a server does


def test_a_run_that_begins_while_an_earlier_one_is_withdrawn_stays_advertised(
    any_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(any_redis, tmp_path)
    registry, other = (redis_registry.RedisRegistry(make_client(config.backend), config) for _ in range(2))
    info = StudyInfo(
        study_id="s", name="n", workspace="/w", plan="p", queues=["q"], session="one", published=1.0
    )
    registry.advertise(info)
    client: Any = registry._client
    found = client.hget

    def hget(key: str, field: str) -> Any:
        text = found(key, field)
        other.advertise(replace(info, session="two"))
        return text

    monkeypatch.setattr(client, "hget", hget)
    registry.withdraw("s", "one")
    assert [study.session for study in other.studies()] == ["two"]
    registry.withdraw("s")
    assert other.studies() == []


class Bench:
    """One study on a server of the test's own."""

    def __init__(self, server: RedisServer, home: Path) -> None:
        self.server, self.config = server, config_for(server, home)
        backend = RedisBackend(self.config, make_client(self.config.backend), lease_s=LEASE_S)
        self.mailbox, self.leases = backend.mailbox(STUDY), backend.leases(STUDY)
        self.mailbox.open(SESSION)
        self.mailbox.offer({"a": "{}", "b": "{}"}, "0")
        self.leases.take("a", "w")

    def other(self, client: Any = None) -> tuple[Mailbox, Leases]:
        """Another process'."""
        backend = RedisBackend(self.config, client or make_client(self.config.backend), lease_s=LEASE_S)
        return backend.mailbox(STUDY), backend.leases(STUDY)

    def calls(self) -> dict[str, Callable[[], object]]:
        return {
            "take": lambda: self.leases.take("b", "w"),
            "renew": lambda: self.leases.renew(["a"]),
            "settle": lambda: self.leases.settle("a", "{}"),
            "own": lambda: self.mailbox.own(SESSION),
            "stay": self.mailbox.renew,
            "offer": lambda: self.mailbox.offer({"c": "{}"}, "0"),
            "expire": self.mailbox.expire,
            "open": lambda: self.mailbox.open("two"),
        }


@pytest.fixture
def careful(tmp_path: Path) -> Iterator[Bench]:
    """A server that still knows everything when it was killed and starts again."""
    with RedisServer(tmp_path, appendfsync="always") as server:
        yield Bench(server, tmp_path)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Bench]:
    """One without an append-only file."""
    with RedisServer(tmp_path, appendonly=False) as server:
        yield Bench(server, tmp_path)


def test_a_full_server_changes_nothing_and_says_so(careful: Bench) -> None:
    careful.leases.take("b", "w")
    with careful.server.client() as client:
        key = Scripts(client, careful.config.namespace, STUDY).keys["expiry"]
        client.zadd(key, {"b": 1})  # it has run out
        careful.mailbox.offer({"c": "{}"}, "0")
        before = {key: client.dump(key) for key in client.keys("*")}
        client.config_set("maxmemory", 1)
        calls = careful.calls() | {"take": lambda: careful.leases.take("c", "w")}
        calls |= {"release": careful.mailbox.release}
        refused = {name: raised(RedisFullError, call) for name, call in calls.items()}
        assert refused == dict.fromkeys(calls, True)
        assert {key: client.dump(key) for key in client.keys("*")} == before
        careful.mailbox.void(["b"])  # what needs no memory works
        client.config_set("maxmemory", 0)
    mailbox, _ = careful.other()
    assert mailbox.own(SESSION, force=True).is_ours
    assert careful.leases.settle("a", "{}")
    assert mailbox.names() == {"c"}


def test_a_study_on_a_full_server_can_be_ended(careful: Bench) -> None:
    with careful.server.client() as client:
        client.config_set("maxmemory", 1)
        careful.other()[0].drop()
        client.config_set("maxmemory", 0)
    assert careful.other()[0].own(SESSION).is_over


def test_an_owner_of_before_the_clock_was_set_back_is_replaced(careful: Bench) -> None:
    assert not careful.other()[0].own(SESSION).is_ours
    with careful.server.client() as client:
        client.hincrby(Scripts(client, careful.config.namespace, STUDY).keys["owner"], "until", 3_600_000)
    assert careful.other()[0].own(SESSION).is_ours


def test_a_server_that_is_killed_goes_on_from_its_append_only_file(careful: Bench) -> None:
    careful.server.kill9()
    for name, call in careful.calls().items():
        with pytest.raises(RedisUnreachableError, match=str(careful.server.port)):
            call()
            raise AssertionError(name)
    careful.server.start_again()
    careful.mailbox.renew()
    assert careful.leases.take("b", "w")
    assert careful.leases.settle("a", "{}")


@pytest.mark.parametrize("end", ["close", "drop"])
def test_an_old_snapshot_does_not_say_that_a_later_run_is_over(forgetful: Bench, end: str) -> None:
    """Nobody would publish it again."""
    getattr(forgetful.mailbox, end)()
    assert forgetful.other()[0].own(SESSION).is_over
    with forgetful.server.client() as client:
        client.save()
    forgetful.mailbox.open("two")
    forgetful.server.kill9()
    forgetful.server.start_again()
    assert raised(StudyGoneError, lambda: forgetful.other()[0].own("two"))
    assert forgetful.mailbox.open("three", only_if_gone=True)


def test_a_server_that_comes_back_with_an_old_snapshot_has_lost_the_study(forgetful: Bench) -> None:
    with forgetful.server.client() as client:
        client.save()
    forgetful.leases.settle("a", "{}")  # which the server forgets
    forgetful.mailbox.renew()
    forgetful.server.kill9()
    forgetful.server.start_again()
    for mailbox, leases in ((forgetful.mailbox, forgetful.leases), forgetful.other()):
        for call in (
            lambda: leases.take("b", "w"),  # noqa: B023
            lambda: leases.renew(["a"]),  # noqa: B023
            lambda: leases.settle("a", "{}"),  # noqa: B023
            lambda: mailbox.own(SESSION, force=True),  # noqa: B023
            mailbox.renew,
            lambda: mailbox.offer({}, "0"),  # noqa: B023
            mailbox.expire,
        ):
            assert raised(StudyGoneError, call)
        assert not mailbox.exists()
    mailbox, leases = forgetful.other()
    assert mailbox.open("two", only_if_gone=True)
    assert mailbox.offers() == []
    assert leases.renew(["a"]) == {"a"}
    assert not mailbox.open("three", only_if_gone=True)


def test_a_server_that_does_not_answer_is_named(own_redis: RedisServer, tmp_path: Path) -> None:
    bench = Bench(own_redis, tmp_path)
    with own_redis.client(socket_timeout=0.3) as impatient:
        mailbox, leases = bench.other(impatient)
        mailbox.exists()
        own_redis.pause()
        for call in (mailbox.exists, lambda: leases.take("b", "w")):
            with pytest.raises(RedisUnreachableError, match=f"127.0.0.1:{own_redis.port}") as caught:
                call()
            assert own_redis.password is not None
            assert own_redis.password not in str(caught.value)
        own_redis.resume()


def test_a_server_that_refuses_connections_is_told_with_one_full_stop() -> None:
    from redis.exceptions import ConnectionError as LostConnection

    def fail() -> None:
        raise LostConnection("Error 111 connecting to h:1. Connection refused.")

    client: Any = object()
    with pytest.raises(RedisUnreachableError, match=r"Connection refused\. Is it running"):
        Scripts(client, "", "").call(fail)


class Relay:
    """Stands between client and server; swallows the next reply and hangs up, if it is told to."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.losing: threading.Event = threading.Event()
        self.num_lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection((HOST, self._server.port))
                for a, b, is_reply in ((ours, theirs, False), (theirs, ours, True)):
                    threading.Thread(target=self._pass_on, args=(a, b, is_reply), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, is_reply: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_reply and self.losing.is_set():
                    self.losing.clear()
                    self.num_lost += 1
                    break
                to.sendall(data)
        for end in (source, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def test_a_call_whose_reply_was_lost_is_repeated_to_the_same_effect(
    any_redis: RedisServer, tmp_path: Path
) -> None:
    bench = Bench(any_redis, tmp_path)
    relay = Relay(any_redis)
    client = make_client(replace(bench.config.backend, port=relay.port))
    mailbox, leases = bench.other(client)
    mailbox.own(SESSION, force=True)
    mailbox.offer({"c": '{"c": 1}'}, "0")
    assert leases.take("c", "w")  # from here on the server knows the scripts
    for call, expected in (
        (lambda: leases.take("b", "w"), "{}"),
        (lambda: leases.renew(["a"]), set()),
        (lambda: mailbox.offer({"d": "{}"}, "0"), None),
        (mailbox.num_held, 3),
        (lambda: mailbox.void(["d"]), None),
        (lambda: mailbox.own(SESSION).is_ours, True),
    ):
        relay.losing.set()
        assert call() == expected
        assert not relay.losing.is_set()
    relay.close()
    assert relay.num_lost == 6
    assert letters_of(mailbox) == [("taken", x, "w") for x in "acb"]
    assert mailbox.names() == {"a", "b", "c"}


def test_a_server_that_is_killed_again_and_again_loses_no_report_and_doubles_none(careful: Bench) -> None:
    num = 400
    careful.mailbox.offer({str(i): "{}" for i in range(num)}, "0")
    settled: list[str] = []
    waiting = [str(i) for i in range(num)]

    def until_answered(call: Callable[[], Any]) -> Any:
        def ask() -> list[Any]:
            try:
                return [call()]
            except RedisUnreachableError:
                return []

        return wait_until(ask)[0]

    def work() -> None:
        _, leases = careful.other()
        with suppress(IndexError):
            while lease := waiting.pop():
                until_answered(lambda: leases.take(lease, "w"))  # None, if the reply was lost
                assert until_answered(lambda: leases.renew([lease])) == set()
                until_answered(lambda: leases.settle(lease, "{}"))  # False, if the reply was lost
                settled.append(lease)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for kill in range(1, 4):
        wait_until(lambda: len(settled) > 90 * kill)  # noqa: B023
        careful.server.kill9()
        careful.server.start_again()
    for thread in threads:
        thread.join()
    mailbox, _ = careful.other()
    reports, last = [], ""
    while letters := mailbox.letters(last):
        reports += [letter.lease for letter in letters if letter.kind == "report"]
        last = letters[-1].id
    assert len(settled) == num
    assert sorted(reports) == sorted(settled)
    assert mailbox.names() == {"a", "b"}


def test_an_error_of_redis_is_one_of_ours(forgetful: Bench) -> None:
    with forgetful.server.client() as client:
        key = Scripts(client, forgetful.config.namespace, STUDY).keys["leases"]
        client.delete(key)
        client.set(key, "1")
    for call in (
        lambda: forgetful.leases.take("b", "w"),
        lambda: forgetful.leases.renew(["a"]),
        forgetful.mailbox.offers,
        forgetful.mailbox.names,
        forgetful.mailbox.num_held,
    ):
        assert raised(ExecutionError, call)
