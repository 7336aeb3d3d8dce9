"""Which process the server is, in a way that a reused process number cannot fool."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from merlin.base.processes import boot_id, start_ticks
from merlin.base.records import as_kind, parsed_with_names
from merlin.config.private_file import write_private

FORMAT = 1
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """The running server, as its starter saw it."""

    host: str
    boot: str  # the boot of that machine
    pid: int  # 0 for a container that has no process of ours
    start_ticks: int  # when the process started, in ticks since the boot
    engine: str
    container: str = ""
    program: str = ""  # the redis-server, or the container engine
    # how it is reached, whatever was configured since for its next start; port 0 if an earlier version started it
    bound_to: str = ""
    port: int = 0
    password: str = field(default="", repr=False)


def new_record(*, engine: str, program: str, pid: int = 0, container: str = "") -> ServerRecord:
    """The record of a process, or a container, that was just started. Raises ProcessLookupError if it is gone."""
    ticks = start_ticks(pid) if pid else 0
    if ticks is None:
        raise ProcessLookupError(pid)
    host, boot = socket.gethostname(), boot_id()
    return ServerRecord(
        host=host, boot=boot, pid=pid, start_ticks=ticks, engine=engine, container=container, program=program
    )


def write_record(record: ServerRecord, path: Path) -> None:
    write_private(path, json.dumps({"format": FORMAT, **asdict(record)}, indent=2) + "\n")


def read_record(path: Path) -> ServerRecord | None:
    """The record; None if there is none or it cannot be understood."""
    try:
        data = parsed_with_names(path.read_bytes())
        return as_kind(data, ServerRecord) if data.pop("format") == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def is_here(record: ServerRecord) -> bool:
    """True if it was started on this machine."""
    return record.host == socket.gethostname()


def is_alive(record: ServerRecord) -> bool:
    """True if that very process or container still runs; False for another machine's."""
    if not is_here(record) or record.boot != boot_id():
        return False
    if record.container:
        return _container_runs(record)
    return start_ticks(record.pid) == record.start_ticks


def wait_until_gone(record: ServerRecord, wait_s: float) -> bool:
    """Wait for its end; False if it outlives the wait."""
    deadline = time.monotonic() + wait_s
    while is_alive(record):
        if time.monotonic() >= deadline:
            return False
        _wait(record, _POLL_S)
    return True


def _wait(record: ServerRecord, wait_s: float) -> None:
    """Sleep until the process ends, but not longer than this."""
    with suppress(OSError):
        if record.pid:
            descriptor = os.pidfd_open(record.pid)
            try:
                select.select([descriptor], [], [], wait_s)
            finally:
                os.close(descriptor)
            return
    time.sleep(wait_s)


def terminate(record: ServerRecord, wait_s: float) -> bool:
    """SIGTERM (or the engine's stop), then SIGKILL; False if it still runs after that."""
    if record.container:
        _ask_engine(record, "stop", record.container, timeout_s=60)
        return wait_until_gone(record, wait_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_alive(record):  # never signal a number that somebody else has by now
            return True
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)
            os.kill(record.pid, signal.SIGCONT)  # a stopped process does not see SIGTERM
        if wait_until_gone(record, wait_s):
            return True
    return False


def _container_runs(record: ServerRecord) -> bool:
    words = ("container", "inspect", "--format", "{{.State.Running}}", record.container)
    try:
        done = _ask_engine(record, *words, timeout_s=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == "true"


def _ask_engine(record: ServerRecord, *words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    argv = [record.program, *words]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)
