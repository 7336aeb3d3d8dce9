"""What `qsub`, `qstat`, `qdel`, `qselect` and `mpiexec` do here."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

from options import PBS, UnknownOptionError, last, read_options
from processes import run_all
from queue_of_jobs import Job, Queue, run_in_background

_SERVER = "pbs"
_STATES = {"pending": "Q", "running": "R", "over": "F"}
_OF_LOGIN = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER")


def _options(name: str, args: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        return read_options(args, PBS[name])
    except UnknownOptionError as error:
        print(
            f"{name}: invalid option -- '{str(error).lstrip('-')}'\nusage: {name} [options]", file=sys.stderr
        )
        sys.exit(2)


def _resources(options: list[tuple[str, str]]) -> dict[str, str]:
    """What all ``-l`` options ask for: the resources of a chunk, and the others."""
    found: dict[str, str] = {}
    for value in (value for name, value in options if name == "-l"):
        for part in value.split(","):
            name, _, text = part.partition("=")
            chunk = text.split(":") if name == "select" else []
            found |= dict(piece.split("=") for piece in chunk[1:])
            found[name] = chunk[0] if chunk else text
    return found


def qsub(root: Path, args: list[str]) -> int:
    options, rest = _options("qsub", args)
    text = Path(rest[0]).read_text() if rest else sys.stdin.read()
    header = []
    for line in text.splitlines():
        if line.startswith("#PBS "):
            header += _options("qsub", shlex.split(line[5:]))[0]
        elif line.strip() and not line.startswith("#"):
            break
    options = [*header, *options]
    name = last(options, "-N", default=Path(rest[0]).name if rest else "STDIN")
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name, re.ASCII):
        print(f"qsub: illegal -N value: {name}", file=sys.stderr)
        return 2
    asked, queue = _resources(options), Queue(root / "pbs")
    number = queue.next_number()
    job = f"{number}.{_SERVER}"
    output = last(options, "-o", default=str(Path.cwd() / f"{name}.o{number}"))
    errors = output if last(options, "-j") == "oe" else last(options, "-e", default=output)
    walltime = asked.get("walltime", "")
    queue.add({
        "id": job, "name": name, "nodes": int(asked.get("select", 1)), "cores": None,
        "walltime_s": _seconds(walltime) if walltime else 0, "warning": 0, "files": [output, errors],
        "cwd": str(root / "home"), "may_rerun": last(options, "-r", default="y") == "y", "walltime": walltime,
        "procs": int(asked.get("mpiprocs", 1)), "ncpus": asked.get("ncpus", "1"),
    })  # fmt: skip
    copy = queue.path(job) / "script"
    copy.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    copy.chmod(0o700)
    print(job, flush=True)

    def program(found: Job) -> tuple[list[str], dict[str, str]]:
        nodes = queue.path(job) / "nodes"
        nodes.write_text("".join(f"{host}\n" * found["procs"] for host in found["hosts"]))
        mine = {key: os.environ[key] for key in _OF_LOGIN if key in os.environ}
        profile = json.loads((root / "profile.json").read_text())
        own = {
            "PBS_JOBID": job, "PBS_JOBNAME": name, "PBS_NODEFILE": str(nodes), "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_QUEUE": last(options, "-q", default="workq"), "PBS_O_WORKDIR": os.getcwd(), "PBS_NODENUM": "0",
            "PBS_TASKNUM": "1", "NCPUS": found["ncpus"],
            **{f"PBS_O_{key}": value for key, value in mine.items()},
        }  # fmt: skip
        login = {**mine, **profile, "HOME": str(root / "home")}
        return [str(copy)], {**login, **_passed_on(options), **own}

    found = queue.find(job)
    assert found is not None
    run_in_background(queue, found, program)
    return 0


def _passed_on(options: list[tuple[str, str]]) -> dict[str, str]:
    """The variables of the submitter that the job gets: all with -V, and those of ``-v A=b,C``."""
    found = dict(os.environ) if "-V" in dict(options) else {}
    for part in last(options, "-v").split(","):
        name, given, value = part.partition("=")
        if given or name in os.environ:
            found[name] = value if given else os.environ[name]
    return found


def _seconds(text: str) -> float:
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds


def qstat(root: Path, args: list[str]) -> int:
    options, rest = _options("qstat", args)
    queue, code, found = Queue(root / "pbs"), 0, {}
    is_history = "-x" in dict(options)
    for name in rest or [job["id"] for job in queue.jobs() if is_history or job["state"] != "over"]:
        job = queue.find(name)
        if job is None:
            print(f"qstat: Unknown Job Id {name}", file=sys.stderr)
            code = 153
        elif job["state"] == "over" and not is_history:
            print(
                f"qstat: {name} Job has finished, use -x or -H to obtain historical job information",
                file=sys.stderr,
            )
            code = 35
        else:
            found[name] = _attributes(job)
    if last(options, "-F") != "json" or "-f" not in dict(options):
        print("Job id            Name             User              Time Use S Queue")
    elif found or not rest:
        about = {
            "timestamp": int(time.time()),
            "pbs_version": "23.06.06",
            "pbs_server": _SERVER,
            "Jobs": found,
        }
        print(json.dumps(about, indent=4))
    return code


def _attributes(job: Job) -> dict[str, object]:
    why, code = job["reason"], job["code"]
    status = {"timeout": -29, "cancel": 271, "lose": -4}.get(why, code)
    ended = job["state"] == "over"
    return {
        "Job_Name": job["name"], "Job_Owner": "user@login1", "job_state": _STATES[job["state"]],
        "substate": {"cancel": 91, "": 92}.get(why, 93) if ended else 10 if job["state"] == "pending" else 42,
        "ctime": _time(job["submitted"]), "queue": "workq",
        "Resource_List": {"nodect": job["nodes"], **({"walltime": job["walltime"]} if job["walltime"] else {})},
        **({"Exit_status": status} if ended and code is not None else {}),
        **({"stime": _time(job["started"])} if job["started"] else {}),
        **({"exec_host": "+".join(f"{host}/0*{job['ncpus']}" for host in job["hosts"])} if job["hosts"] else {}),
        **({"comment": "Not Running: Insufficient amount of resource: ncpus"} if job["state"] == "pending" else {}),
    }  # fmt: skip


def _time(seconds: float) -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(seconds))


def qdel(root: Path, args: list[str]) -> int:
    queue, code = Queue(root / "pbs"), 0
    for name in _options("qdel", args)[1]:
        job = queue.find(name)
        if job is None or job["state"] == "over":
            print(f"qdel: {'Job has finished' if job else 'Unknown Job Id'} {name}", file=sys.stderr)
            code = 35 if job else 153
        else:
            queue.cancel(job)
    return code


def qselect(root: Path, args: list[str]) -> int:
    given = dict(_options("qselect", args)[0])
    for job in Queue(root / "pbs").jobs():
        if ("-x" in given or job["state"] != "over") and given.get("-N", job["name"]) == job["name"]:
            print(job["id"])
    return 0


def mpiexec(root: Path, args: list[str]) -> int:
    options, rest = _options("mpiexec", args)
    size = int(last(options, "-n", "--np", "-np", default="1"))
    per_node = last(options, "--ppn", "-ppn")
    own = last(options, "--host", "--hosts", "-H")
    nodes = os.environ.get("PBS_NODEFILE", "")
    slots = own.split(",") if own else Path(nodes).read_text().split() if nodes else [""]
    if per_node:
        slots = [host for host in dict.fromkeys(slots) for _ in range(int(per_node))]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PMI_")}
    return run_all([
        (slots[rank % len(slots)], rest, {**env, "PMI_RANK": str(rank), "PMI_SIZE": str(size)}) for rank in range(size)
    ])  # fmt: skip


COMMANDS = {"qsub": qsub, "qstat": qstat, "qdel": qdel, "qselect": qselect, "mpiexec": mpiexec}
