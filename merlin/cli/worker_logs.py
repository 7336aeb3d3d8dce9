"""Shows the logs of workers and the output of their jobs."""

from __future__ import annotations

import socket
import sys
import time
from difflib import get_close_matches
from pathlib import Path

from merlin.base.text import short_name
from merlin.batch.job_records import JobRecords
from merlin.cli.output import print_json, print_table, remark
from merlin.errors import UsageError
from merlin.execution.distributed.start import LOGS_DIR
from merlin.execution.distributed.worker_jobs import jobs_folder

POLL_S = 0.5
BLOCK_BYTES = 1 << 20


def show_log(place: Path | None, worker: str, job: str, follow: bool, as_json: bool) -> None:
    """Print one log, or a list of those that there are. Raises UsageError for a name that there is not."""
    if worker and job:
        raise UsageError("--worker and --job exclude each other; choose one")
    logs = {path.stem: path for path in sorted((Path.cwd() / LOGS_DIR).glob("*.log"))}
    outputs = {
        record.id or record.name: Path(record.output) for record in JobRecords(jobs_folder(place)).all()
    }
    if not worker and not job:
        _list(logs, outputs, as_json)
        return
    worker = short_name(worker).removesuffix(f".{socket.gethostname()}")
    path = _found(worker, logs, "worker") if worker else _found(job, outputs, "job")
    if as_json:
        print_json({"log": path, "exit_code": 0})
        return
    try:
        _print(path, follow)
    except FileNotFoundError:
        remark(f"{path} is not there yet: the job has not begun")
    except KeyboardInterrupt:
        sys.exit(130)


def _found(name: str, known: dict[str, Path], what: str) -> Path:
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(list(known)[-10:]) or 'none'}"
    raise UsageError(f"no log of a {what} {name!r} here; {hint}")


def _list(logs: dict[str, Path], outputs: dict[str, Path], as_json: bool) -> None:
    if as_json:
        print_json({"workers": logs, "jobs": outputs, "exit_code": 0})
    elif logs or outputs:
        rows = [("worker", name, path) for name, path in logs.items()]
        print_table(("", "name", "log"), [*rows, *(("job", name, path) for name, path in outputs.items())])
    else:
        remark(f"no logs in {Path.cwd() / LOGS_DIR}, and no worker jobs here")


def _print(path: Path, follow: bool) -> None:
    """Print the file as it is, and with `follow` what is added to it."""
    with path.open("rb") as file:
        while True:
            while block := file.read(BLOCK_BYTES):
                sys.stdout.write(block.decode("utf-8", "replace"))
            sys.stdout.flush()
            if not follow:
                return
            time.sleep(POLL_S)
