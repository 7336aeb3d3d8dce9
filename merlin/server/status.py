"""The state of a private server."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from merlin.server.folder import Folder
from merlin.server.record import ServerRecord, is_alive, is_here, read_record
from merlin.server.talk import info

State = Literal["missing", "stopped", "loading", "running", "hanging", "elsewhere"]


class Status(Struct, frozen=True, kw_only=True):
    """What `merlin server status` shows."""

    state: State
    folder: str
    address: str = ""
    machine: str = ""  # where it was started
    pid: int | None = None
    engine: str = ""
    program: str = ""  # what runs: the redis-server, or the container engine
    version: str = ""
    uptime_s: int | None = None
    used_memory_bytes: int | None = None
    num_clients: int | None = None
    detail: str = ""


def status(folder: Folder) -> Status:
    """Look at the server's process, and ask the server. Raises ConfigError if the files are damaged."""
    if not folder.exists:
        return Status(state="missing", folder=str(folder.path), detail="make one: merlin server init")
    settings = folder.settings()
    record = read_record(folder.record_file)
    endpoint = folder.running_endpoint(settings) if settings.port else None
    said = info(endpoint) if endpoint else None
    state, detail = _state(record, said)
    started = record if state != "stopped" else None
    return Status(
        state=state,
        folder=str(folder.path),
        address=endpoint.address if endpoint else "",
        machine=started.host if started else "",
        pid=_pid(record, said),
        engine=started.engine if started else settings.engine,
        program=started.program if started else "",
        version=str(said["redis_version"]) if said else "",
        uptime_s=int(said["uptime_in_seconds"]) if said else None,
        used_memory_bytes=int(said.get("used_memory", 0)) if said else None,
        num_clients=int(said.get("connected_clients", 0)) if said else None,
        detail=detail,
    )


def _state(record: ServerRecord | None, said: dict[str, Any] | None) -> tuple[State, str]:
    if said is not None:
        if said.get("loading"):
            return "loading", "it reads its data back and will answer in a moment"
        return "running", ""
    if record is None:
        return "stopped", "start it: merlin server start"
    if not is_here(record):
        what = f"it was started on {record.host} and does not answer"
        return "elsewhere", f"{what}; look there: merlin server status"
    if is_alive(record):
        return "hanging", f"process {record.pid or record.container} runs and does not answer"
    return "stopped", "it ended by itself, or the machine was restarted; start it: merlin server start"


def _pid(record: ServerRecord | None, said: dict[str, Any] | None) -> int | None:
    """The process id on the server's machine; Redis in a container only knows another one."""
    if record is not None and (record.container or not said):
        return record.pid if record.pid and is_alive(record) else None
    return int(said["process_id"]) if said else None
