"""Init, start, stop: one `merlin server` command at a time in a directory."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from merlin.base.files import end_of
from merlin.base.locks import locked
from merlin.config.model import Endpoint
from merlin.config.private_file import make_data_dir, make_private_dir, write_private
from merlin.errors import ConfigError, ExecutionError
from merlin.server.engine import ServerLaunch, launch
from merlin.server.folder import Folder, make_folder, make_password, write_app_file
from merlin.server.record import (
    ServerRecord,
    is_alive,
    new_record,
    read_record,
    terminate,
    wait_until_gone,
    write_record,
)
from merlin.server.redis_conf import render, render_users
from merlin.server.settings import Settings, write_settings
from merlin.server.status import Status, status
from merlin.server.talk import info, set_users, shut_down

START_S = 60.0  # how long `start` waits for a server that reads its data back
STOP_S = 10.0
_PORT_TRIES = 5
_POLL_S = 0.05
_TAIL_LINES, _TAIL_BYTES = 8, 8192


def init(folder: Folder, changes: Mapping[str, Any]) -> bool:
    """Make the directory; False if there is a server already, which is left as it is.

    Raises ConfigError for changes to a server that exists, and for values that cannot be.
    """
    wanted = Settings().with_changes(dict(changes))
    with _locked(folder):
        if folder.exists:
            settings = folder.settings()
            if changes:
                raise ConfigError(f"there is a server in {folder.path}; change it with: merlin server config")
            make_password(folder, settings)
            return False
        make_folder(folder, wanted)
        return True


def configure(folder: Folder, changes: Mapping[str, Any], *, password: str = "") -> Settings:
    """Change the settings of the server; users change at once, everything else at the next start.

    `password` is written into the server's own password file.
    """
    with locked(_existing(folder).path, wait=True):
        before = folder.settings()
        settings = before.with_changes(dict(changes))
        if settings.users != before.users:
            set_users(
                folder.running_endpoint(before), settings.users, gone=set(before.users) - set(settings.users)
            )
        if password:
            write_private(folder.password_file(settings), password + "\n")
        make_password(folder, settings)
        folder.password(settings)
        write_settings(settings, folder.settings_file)
        write_private(folder.users_file, render_users(settings))
        return settings


def start(folder: Folder, changes: Mapping[str, Any], *, wait_s: float = START_S) -> tuple[Status, bool]:
    """Start the server, made first if there is none, and wait until it answers.

    The second value is False if it was running already; `changes` are not made then.
    Raises ConfigError if it cannot be started like this, ExecutionError if it does not come up.
    """
    with _locked(folder):
        if not folder.exists:
            make_folder(folder, Settings())
        before = status(folder)
        if before.state in ("running", "loading"):
            settings = folder.settings()
            _wait_until_ready(
                folder, folder.running_endpoint(settings), read_record(folder.record_file), wait_s
            )
            return status(folder), False
        _refuse_second_server(before)
        settings = folder.settings().with_changes(dict(changes))
        _start(folder, settings, wait_s)
        return status(folder), True


def stop(folder: Folder, *, wait_s: float = STOP_S) -> bool:
    """Stop the server and wait for its end; False if it was not running.

    Raises ExecutionError if it runs on another machine that does not answer, or outlives SIGKILL.
    """
    with locked(_existing(folder).path, wait=True):
        before = status(folder)
        record = read_record(folder.record_file)
        if before.state == "stopped":
            folder.record_file.unlink(missing_ok=True)
            return False
        if before.state == "elsewhere":
            raise ExecutionError(
                f"the server in {folder.path} was started on {before.machine}: stop it there"
            )
        endpoint = folder.running_endpoint(folder.settings())
        if before.state == "hanging" and record is not None:
            ended = terminate(record, wait_s)
        else:
            shut_down(endpoint)
            ended = _ended(endpoint, record, wait_s)
        if not ended:
            raise ExecutionError(
                f"the server at {endpoint.address} does not end; its log is {folder.log_file}"
            )
        folder.record_file.unlink(missing_ok=True)
        return True


def restart(folder: Folder) -> Status:
    """Stop and start; a server that was not running is started."""
    stop(folder)
    return start(folder, {})[0]


@contextmanager
def _locked(folder: Folder) -> Iterator[None]:
    """Hold the lock on the directory, which is made if it is missing. Raises ConfigError if it cannot be."""
    try:
        str(folder.path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{folder.path} is not UTF-8 text, and the files of a server, which name it, are\n"
            "  Choose another directory: merlin server start --dir DIR"
        ) from None
    if not folder.exists:
        make_private_dir(folder.path)
    with locked(folder.path, wait=True):
        yield


def _existing(folder: Folder) -> Folder:
    folder.settings()
    return folder


def _refuse_second_server(before: Status) -> None:
    """Raise ExecutionError if a server may still run: two servers with the same files would destroy them."""
    if before.state == "hanging":
        raise ExecutionError(f"{before.detail}\n  End it first: merlin server stop")
    if before.state == "elsewhere":
        raise ExecutionError(
            f"the server in {before.folder} was started on {before.machine}, and does not answer from here\n"
            f"  If it may still run there: merlin server stop, on {before.machine}\n"
            f"  If that machine is gone: delete {before.folder}/merlin_server.pf"
        )


def _start(folder: Folder, settings: Settings, wait_s: float) -> None:
    make_private_dir(folder.path)
    make_data_dir(folder.data_dir(settings))
    for tries_left in reversed(range(_PORT_TRIES)):
        settings = _with_free_port(settings)
        write_settings(settings, folder.settings_file)
        write_private(folder.users_file, render_users(settings))
        write_private(folder.redis_conf, render(folder, settings))
        write_app_file(folder, settings)
        try:
            _run(folder, settings, wait_s)
        except ExecutionError as error:
            # somebody may have taken the port in between
            if settings.port_is_fixed or not tries_left or "ddress already in use" not in str(error):
                raise
        else:
            return


def _with_free_port(settings: Settings) -> Settings:
    """The settings with a port that nobody uses now. Raises ConfigError if there cannot be one."""
    if settings.port:
        try:
            _bind(settings.host, settings.port)
            return settings
        except OSError as error:
            if settings.port_is_fixed:
                raise ConfigError(
                    f"port {settings.port} of {settings.host} cannot be used: {error.strerror or error}\n"
                    "  Choose another one: merlin server config --port PORT"
                ) from error
    try:
        return settings.with_changes({"port": _bind(settings.host, 0)})
    except OSError as error:
        raise ConfigError(
            f"{settings.host} is not an address of this machine: {error.strerror or error}\n"
            "  Choose another one: merlin server config --host ADDRESS"
        ) from error


def _bind(host: str, port: int) -> int:
    """The port that a listening socket gets."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return int(listener.getsockname()[1])


def _run(folder: Folder, settings: Settings, wait_s: float) -> None:
    """Start Redis, note which process it is, and wait until it answers."""
    how = launch(folder, settings)
    log_start = folder.log_file.stat().st_size if folder.log_file.exists() else 0
    record = replace(
        _run_container(how) if how.container else _run_process(how, folder, settings),
        bound_to=settings.host, port=settings.port, password=folder.password(settings).reveal(),
    )  # fmt: skip
    write_record(record, folder.record_file)
    try:
        _wait_until_ready(folder, folder.endpoint(settings), record, wait_s, log_start)
    except ExecutionError:
        if not is_alive(record):
            folder.record_file.unlink(missing_ok=True)
        raise


def _run_process(how: ServerLaunch, folder: Folder, settings: Settings) -> ServerRecord:
    log = os.open(folder.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            how.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder.path.parent,  # from which `dir` counts
            env=_environment(),
            start_new_session=True,
            umask=0o077,
        )
        return new_record(engine=how.engine, program=how.argv[0], pid=process.pid)
    except OSError as error:
        raise ExecutionError(f"Redis did not start: {error}\n{_tail(folder.log_file)}") from error
    finally:
        os.close(log)


def _run_container(how: ServerLaunch) -> ServerRecord:
    program = how.argv[0]
    leftover = [program, "rm", "--force", how.container]  # our name, and nothing of that name runs
    for argv in (leftover, how.argv):
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_environment()
        )
    if done.returncode:
        raise ExecutionError(
            f"{how.engine} did not start the container (exit code {done.returncode}):\n{done.stderr.strip()}"
        )
    return new_record(engine=how.engine, program=program, container=how.container)


def _environment() -> dict[str, str]:
    """Our variables without those that may hold secrets, and the locale that Redis needs."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}, "LC_ALL": "C"}


def _wait_until_ready(
    folder: Folder, endpoint: Endpoint, record: ServerRecord | None, wait_s: float, log_start: int = 0
) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        said = info(endpoint)
        if said is not None and not said.get("loading"):
            return
        if record is not None and not is_alive(record) and said is None:
            raise ExecutionError(
                f"Redis ended while it started; {folder.log_file} says:\n{_tail(folder.log_file, log_start)}"
            )
        if time.monotonic() > deadline:
            raise ExecutionError(
                f"Redis at {endpoint.address} runs, but did not answer within {wait_s:g} s "
                "(a large data set takes long to read)\n"
                f"  Look again: merlin server status; its log is {folder.log_file}"
            )
        time.sleep(_POLL_S)


def _tail(path: Path, start: int = 0) -> str:
    """The last lines of a log, from an offset on."""
    lines = end_of(path, _TAIL_BYTES, start=start).splitlines()
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])


def _ended(endpoint: Endpoint, record: ServerRecord | None, wait_s: float) -> bool:
    """Wait for the end of the server, and force it if we know the process."""
    if record is not None and is_alive(record):
        return wait_until_gone(record, wait_s) or terminate(record, wait_s)
    deadline = time.monotonic() + wait_s  # no process of ours: all we can see is that it stops answering
    while info(endpoint) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
