"""Private servers for tests: Redis and RabbitMQ on free loopback ports, with everything they write in one folder.

    with RedisServer(tmp_path) as server:
        server.client().ping()
        server.kill9()
        server.start_again()  # same port, same files

They need the binaries alone (`make servers`), never a system service, and they die with the process that started
them, however that ends. The pytest fixtures are in tests/conftest.py.

    python servers.py OWNER VHOST…   a RabbitMQ with these virtual hosts, which ends when the process OWNER does
"""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import json
import os
import random
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest
from commands import shared_place

from merlin.base.processes import group_members

HOST = "127.0.0.1"
LOOPBACK = {"0100007F"}  # the same, as `listening` returns it
PASSWORD = "a-Password-9f3c01ab"  # of every server here; unusual, so that a test can search logs for it
USER = VHOST = "merlin"  # of RabbitMQ
START_S = 120.0  # a loaded machine starts RabbitMQ in 20 s
ANSWER_S = 60.0  # for clients: reached only when a server hangs
PORTS = range(15_000, 32_000)  # below the range that outgoing connections use
MAX_PROCESSES = 8  # of one test run, that draw ports of their own
STOP_S = 20.0


def unavailable(reason: str) -> NoReturn:
    """Skip the test because a prerequisite is missing; in CI, let it fail."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def program(*candidates: str) -> str:
    """The path of the first of these programs that is installed; else the test is skipped, or fails in CI."""
    for name in candidates:
        if path := shutil.which(name):
            return path
    unavailable(f"{candidates[-1]} is not installed; as root, `make servers` installs it")


def own_number() -> int:
    """The number of this process among those of a test run."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def free_port() -> int:
    """A port that nobody listens on, outside the range that outgoing connections take theirs from.

    Nobody else gets this port: each process of a test run has ports of its own, and returns each of them only once in a
    long while. So a server that starts slowly, or starts again after it was killed, finds its port still free.
    """
    draw = random.SystemRandom()
    while True:
        port = draw.choice(PORTS[own_number() % MAX_PROCESSES :: MAX_PROCESSES])
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            if port not in _given:
                _given.append(port)
                return port


_given: deque[int] = deque(maxlen=500)


@dataclass(frozen=True)
class Authority:
    """A certificate authority of this test alone, and a certificate it signed for localhost."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The authority that `throwaway_ca` has made in the folder."""
        return cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")

    def context(self) -> ssl.SSLContext:
        """The TLS context of clients that trust this authority and no other."""
        return ssl.create_default_context(cafile=str(self.ca))


def throwaway_ca(folder: Path) -> Authority:
    """Make both in `folder`, which is made, too; the private keys are readable by us alone."""
    openssl = program("openssl")
    folder.mkdir(parents=True, exist_ok=True)
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority = ["-subj", f"/CN=throwaway authority {folder.name}", "-keyout", "ca.key", "-out", "ca.pem"]
    authority += ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]  # Python 3.13 wants it
    server = ["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.pem"]
    server += ["-addext", f"subjectAltName=DNS:localhost,IP:{HOST}", "-addext", "basicConstraints=CA:FALSE"]
    for names in (authority, [*server, "-CA", "ca.pem", "-CAkey", "ca.key"]):
        command = [openssl, "req", "-x509", *new_key, *names]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    for key in folder.glob("*.key"):
        key.chmod(0o600)
    return Authority.of(folder)


def listening(group: int) -> set[str]:
    """The addresses that processes of the group listen on, as /proc writes them."""
    inodes = set()
    for pid in group_members(group):
        with suppress(OSError):  # a process that has ended meanwhile
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # or closed a file
                    inodes.add(os.readlink(fd))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].split(":")[0])
    return found


class _Server:
    """A server process that leads its own process group."""

    name: str
    url: str  # with the password
    poll_s = 0.02  # between two questions whether it answers

    def __init__(self, folder: Path, tls: Authority | None) -> None:
        self.folder = folder / f"{self.name}-{len(list(folder.glob(self.name + '-*')))}"
        self.folder.mkdir(parents=True, mode=0o700)
        self.port = free_port()
        self.tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> tuple[list[str], Mapping[str, str] | None]:
        """The command line, and the environment if it is not ours."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise an exception unless it answers a client."""
        raise NotImplementedError

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def start_again(self) -> None:
        """Start the server again, on the same port with the same files; returns when it answers."""
        assert self._process is None, f"{self.name} runs already"
        argv, environment = self.command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        die_with_us(self.pid)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        assert self._process is not None
        while True:
            try:
                return self.check()
            except Exception as error:
                if self._process.poll() is None and time.monotonic() < deadline:
                    time.sleep(self.poll_s)
                    continue
                tail = self.log.read_text(errors="replace")[-3000:]
                self.kill9()
                raise RuntimeError(f"{self.name} does not answer: {error!r}\n{tail}") from error

    def kill9(self) -> None:
        """SIGKILL: what a crash or the kernel's memory killer does."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        while group_members(self.pid):  # the server may be a child of the script that starts it
            time.sleep(0.01)
        die_with_us(self.pid, no_longer=True)
        self._process = None

    def stop(self) -> None:
        """SIGTERM: an orderly end."""
        if self._process is None:
            return
        self.resume()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill9()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def close(self) -> None:
        self.kill9()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RedisServer(_Server):
    """Starts in about 0.1 s. Without `appendonly` it forgets everything when it ends.

    `maxmemory` is written as in redis.conf ("3mb"); a full server refuses writes and evicts nothing. With
    `appendfsync` "everysec" a server that is killed may forget what it acknowledged: while a slow disk still does the
    last sync, Redis delays the next write to its log by up to two seconds. With "always" it forgets nothing.
    """

    name = "redis"

    def __init__(
        self,
        folder: Path,
        *,
        appendonly: bool = True,
        password: str | None = PASSWORD,
        tls: Authority | None = None,
        maxmemory: str | None = None,
        appendfsync: str = "everysec",
        host: str = HOST,
    ) -> None:
        self._program = program("redis-server")
        super().__init__(folder, tls)
        self._host = host
        self.password = password
        self._appendonly, self._appendfsync, self._maxmemory = appendonly, appendfsync, maxmemory
        secret = f":{password}@" if password else ""
        self.url = f"{'rediss' if tls else 'redis'}://{secret}{host}:{self.port}/0"
        self.start_again()

    def command(self) -> tuple[list[str], None]:
        config = self.folder / "redis.conf"
        config.touch(mode=0o600)
        config.write_text("".join(f"{line}\n" for line in self._config()))
        return [self._program, str(config)], None

    def _config(self) -> list[str]:
        yes = "yes" if self._appendonly else "no"
        lines = [f"bind {self._host}", f"dir {self.folder}", 'save ""', "loglevel notice"]
        lines += [f"appendonly {yes}", f"appendfsync {self._appendfsync}"]
        if self.password:
            lines.append(f"requirepass {self.password}")
        if self._maxmemory:
            lines += [f"maxmemory {self._maxmemory}", "maxmemory-policy noeviction"]
        if self.tls is None:
            return [*lines, f"port {self.port}"]
        files = f"tls-cert-file {self.tls.cert}", f"tls-key-file {self.tls.key}"
        lines += ["port 0", f"tls-port {self.port}", "tls-auth-clients no"]
        return [*lines, *files, f"tls-ca-cert-file {self.tls.ca}"]

    def client(self, **more: Any) -> Any:
        """A `redis.Redis` that decodes to str."""
        import redis

        options: dict[str, Any] = {"decode_responses": True}
        options |= {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S}
        if self.tls is not None:
            options["ssl_ca_certs"] = str(self.tls.ca)
        return redis.Redis.from_url(self.url, **(options | more))

    def check(self) -> None:
        with self.client(socket_timeout=5, socket_connect_timeout=5) as client:  # it is asked again
            client.ping()


class RabbitServer(_Server):
    """Starts in some seconds, with a node, a cookie and a port mapper of its own.

    With an authority, it has a second port, `tls_port`, for connections over TLS.
    """

    name = "rabbitmq"
    poll_s = 0.2  # it takes seconds to start, and a question takes milliseconds of a core
    user, password = USER, PASSWORD

    def __init__(
        self, folder: Path, authority: Authority | None = None, vhosts: Sequence[str] = (VHOST,)
    ) -> None:
        self._program = program("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
        epmd = program("epmd")
        super().__init__(folder, None)
        self._authority, self.tls_port = authority, free_port()
        self._vhosts = vhosts
        self._enter(vhosts[0])
        self._epmd_port, self._dist_port = free_port(), free_port()
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(random.SystemRandom().randbytes(16).hex())
        cookie.chmod(0o400)
        self._epmd = subprocess.Popen(
            [epmd, "-address", HOST, "-port", str(self._epmd_port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        die_with_us(self._epmd.pid)
        try:
            self.start_again()
        except BaseException:
            self.close()
            raise

    def _enter(self, vhost: str) -> None:
        self.vhost = vhost
        self.url = f"{'amqps' if self.tls else 'amqp'}://{USER}:{PASSWORD}@{HOST}:{self.port}/{vhost}"

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        (self.folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in self._config()))
        (self.folder / "definitions.json").write_text(json.dumps(self._definitions()))
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "rabbitmq-env.conf").touch()
        erlang = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
        files = {
            "CONFIG_FILE": "rabbitmq.conf",
            "ADVANCED_CONFIG_FILE": "advanced.config",
            "CONF_ENV_FILE": "rabbitmq-env.conf",
            "ENABLED_PLUGINS_FILE": "enabled_plugins",
            "MNESIA_BASE": "mnesia",
            "LOG_BASE": "log",
            "PID_FILE": "pid",
            "GENERATED_CONFIG_DIR": "generated",
        }
        ours = {
            "HOME": str(self.folder),  # where Erlang looks for its cookie
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"merlin-test-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erlang,
        }
        ours |= {f"RABBITMQ_{name}": str(self.folder / file) for name, file in files.items()}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))}
        return [self._program], inherited | ours

    def _config(self) -> list[str]:
        lines = [f"load_definitions = {self.folder / 'definitions.json'}"]
        lines += ["disk_free_limit.absolute = 1MB", "log.file.level = info"]
        lines.append(f"listeners.tcp.local = {HOST}:{self.port}")
        if self._authority is None:
            return lines
        return [
            *lines,
            f"listeners.ssl.local = {HOST}:{self.tls_port}",
            f"ssl_options.cacertfile = {self._authority.ca}",
            f"ssl_options.certfile = {self._authority.cert}",
            f"ssl_options.keyfile = {self._authority.key}",
            "ssl_options.verify = verify_none",
            "ssl_options.fail_if_no_peer_cert = false",
        ]

    def _definitions(self) -> dict[str, Any]:
        """The user and the virtual hosts, as the server reads them when it starts."""
        salt = random.SystemRandom().randbytes(4)
        digest = base64.b64encode(salt + hashlib.sha256(salt + PASSWORD.encode()).digest()).decode()
        user = {
            "name": USER,
            "password_hash": digest,
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "",
        }
        access = {"user": USER, "configure": ".*", "write": ".*", "read": ".*"}
        return {
            "users": [user],
            "vhosts": [{"name": vhost} for vhost in self._vhosts],
            "permissions": [{"vhost": vhost, **access} for vhost in self._vhosts],
        }

    def connection(self) -> Any:
        """A `kombu.Connection`."""
        from kombu import Connection

        secure = self.tls and {"ca_certs": str(self.tls.ca), "cert_reqs": ssl.CERT_REQUIRED}
        options = {"confirm_publish": True}  # what is published is on the disk when `publish` returns
        return Connection(self.url, connect_timeout=ANSWER_S, ssl=secure or False, transport_options=options)

    def check(self) -> None:
        with self.connection() as connection:
            connection.connect()

    def close(self) -> None:
        super().close()
        if self._epmd.poll() is None:
            self._epmd.kill()
            self._epmd.wait()
            die_with_us(self._epmd.pid, no_longer=True)


class SharedRabbit(RabbitServer):
    """See `shared_rabbit` and `secure_rabbit`."""

    def __init__(self, folder: Path, port: int, vhost: str, tls: Authority | None = None) -> None:
        self.folder, self.port, self.tls, self._process = folder, port, tls, None
        self._enter(vhost)

    def start_again(self) -> None:
        raise AssertionError("the server is not this test's own")

    kill9 = pause = resume = stop = close = start_again


def shared_rabbit() -> SharedRabbit:
    """The one of the whole test run, in a virtual host of this process; whoever asks first starts it."""
    found, vhost = _shared_rabbit()
    return SharedRabbit(Path(found["folder"]), found["port"], vhost)


def secure_rabbit() -> SharedRabbit:
    """The same server, over TLS; `tls` is the authority that signed its certificate."""
    found, vhost = _shared_rabbit()
    authority = Authority.of(Path(found["authority"]))
    return SharedRabbit(Path(found["folder"]), found["tls_port"], vhost, authority)


def _shared_rabbit() -> tuple[dict[str, Any], str]:
    """What its process says of the shared server, and the virtual host of this process."""
    for needed in ("rabbitmq-server", "epmd", "openssl"):
        program(needed)  # here, where a test can be skipped
    owner, place = shared_place()
    vhosts = [f"{VHOST}-{n}" for n in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    known = place / "rabbitmq.json"
    with (place / "rabbitmq.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            argv = [sys.executable, __file__, str(owner), *vhosts]
            server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, f"{argv} ended with {server.wait()}"
            known.write_text(line)
    return json.loads(known.read_text()), vhosts[own_number() % len(vhosts)]


def _serve(owner: int, vhosts: Sequence[str]) -> None:
    """Run a RabbitMQ until the process `owner` ends; says where in a line of JSON when it answers."""
    end = os.pidfd_open(owner)
    with tempfile.TemporaryDirectory(prefix="merlin-rabbitmq-") as folder:
        place = Path(folder) / "authority"
        with RabbitServer(Path(folder), throwaway_ca(place), vhosts) as server:
            told = {"folder": str(server.folder), "port": server.port}
            told |= {"tls_port": server.tls_port, "authority": str(place)}
            print(json.dumps(told), flush=True)
            select.select([end], [], [])


_KEEPER = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    sign, group = line.split()
    (groups.add if sign == "+" else groups.discard)(int(group))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


@functools.cache
def _keeper(owner: int) -> subprocess.Popen[str]:
    """A process that lives a moment longer than this one, to kill what a killed test run leaves behind."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _KEEPER], stdin=subprocess.PIPE, text=True, start_new_session=True
    )


def die_with_us(group: int, *, no_longer: bool = False) -> None:
    """Have the process group killed when this process ends, in whatever way."""
    pipe = _keeper(os.getpid()).stdin
    assert pipe is not None
    pipe.write(f"{'-' if no_longer else '+'} {group}\n")
    pipe.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2:])
