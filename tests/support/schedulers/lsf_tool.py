"""What `bsub`, `bjobs`, `bkill` and `jsrun` do here."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

from options import LSF, UnknownOptionError, last, read_options
from processes import run_all
from queue_of_jobs import Job, Queue, run_in_background

_LAUNCH_HOST = "login1"
_STATS = {"pending": "PEND", "running": "RUN"}
_REASONS = {
    "cancel": "TERM_OWNER: job killed by owner",
    "timeout": "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
    "lose": "TERM_ZOMBIE: job exited while LSF is not available",
}


def _options(
    name: str, args: list[str], *, is_short: bool = False
) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        return read_options(args, LSF[name], is_short=is_short)
    except UnknownOptionError as error:
        print(f"{error}: Illegal option.\nUsage: {name} [options]", file=sys.stderr)
        sys.exit(255)


def _seconds(text: str) -> float:
    """The seconds of [hour:]minute."""
    hours, _, minutes = text.rpartition(":")
    return 3600.0 * int(hours or 0) + 60 * int(minutes)


def bsub(root: Path, args: list[str]) -> int:
    options, rest = _options("bsub", args)
    text = f"#!/bin/sh\n{shlex.join(rest)}\n" if rest else sys.stdin.read()
    if not rest:
        for line in text.splitlines():
            if line.startswith("#BSUB"):
                options = [*_options("bsub", shlex.split(line[5:]))[0], *options]
    if not last(options, "-nnodes", "-n"):
        options.append(("-nnodes", "1"))
    if "-nnodes" in dict(options) and "-n" in dict(options):
        print("Option -nnodes conflicts with -n. Job not submitted.", file=sys.stderr)
        return 255
    queue = Queue(root / "lsf")
    job = str(queue.next_number())
    output = last(options, "-o", "-oo").replace("%J", job)
    walltime = last(options, "-W")
    queue.add({
        "id": job, "name": last(options, "-J", default=Path(rest[0]).name if rest else ""),
        "nodes": int(last(options, "-nnodes", default="1")), "cores": None,
        "walltime_s": _seconds(walltime) if walltime else 0,
        "warning": _seconds(last(options, "-wt", default="0")) if last(options, "-wa") else 0,
        "files": [output or os.devnull, last(options, "-e", "-eo").replace("%J", job)],
        "cwd": last(options, "-cwd", default=os.getcwd()), "may_rerun": "-r" in dict(options),
    })  # fmt: skip
    copy = queue.path(job) / "script"
    copy.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    copy.chmod(0o700)
    where = last(options, "-q")
    print(
        f"Job <{job}> is submitted to {f'queue <{where}>' if where else 'default queue <normal>'}.",
        flush=True,
    )

    def program(found: Job) -> tuple[list[str], dict[str, str]]:
        hosts = [_LAUNCH_HOST, *found["hosts"]]
        own = {
            "LSB_JOBID": job, "LSB_BATCH_JID": job, "LSB_JOBINDEX": "0", "LSB_JOBNAME": found["name"],
            "LSB_QUEUE": where or "normal", "LSB_HOSTS": " ".join(hosts), "LS_SUBCWD": found["cwd"],
            "LSB_MCPU_HOSTS": " ".join(f"{host} {1 if host == _LAUNCH_HOST else queue.cores}" for host in hosts),
            "LSB_DJOB_NUMPROC": str(len(hosts)), **({"LSB_RESTART": "Y"} if found["restarts"] else {}),
        }  # fmt: skip
        return [str(copy)], {**os.environ, **own}

    found = queue.find(job)
    assert found is not None
    run_in_background(queue, found, program)
    return 0


def bjobs(root: Path, args: list[str]) -> int:
    options, rest = _options("bjobs", args)
    queue = Queue(root / "lsf")
    known = {job["id"]: job for job in queue.jobs()}
    is_all = "-a" in dict(options)
    wanted = rest or [job["id"] for job in known.values() if is_all or job["state"] != "over"]
    if not wanted:
        print("No job found" if is_all else "No unfinished job found", file=sys.stderr)
        return 0
    names = last(options, "-o").split()
    records = [
        {name.upper(): _fields(queue, known[job])[name] for name in names}
        if job in known
        else {"JOBID": job, "ERROR": f"Job <{job}> is not found"}
        for job in wanted
    ]
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))
    return 0 if any(job in known for job in wanted) else 255


def _fields(queue: Queue, job: Job) -> dict[str, str]:
    is_over, code, now = job["state"] == "over", job["code"], queue.now(job)
    left = (job["started"] or now) + job["walltime_s"] - now
    minutes = max(0, int(left / 60))
    return {
        "jobid": job["id"], "job_name": job["name"],
        "stat": _STATS.get(job["state"]) or ("DONE" if code == 0 and not job["reason"] else "EXIT"),
        "exit_code": str(code) if is_over and code else "", "exit_reason": _REASONS.get(job["reason"], ""),
        "nexec_host": str(len(job["hosts"])) if job["hosts"] else "",
        "exec_host": ":".join(f"40*{host}" for host in job["hosts"]),
        "run_time": f"{int(now - job['started'])} second(s)" if job["started"] else "0 second(s)",
        "time_left": f"{minutes // 60}:{minutes % 60} L" if job["walltime_s"] and job["started"] else "",
        "pend_reason": "Not enough hosts to meet the job's spanning requirement;" if job["state"] == "pending" else "",
    }  # fmt: skip


def bkill(root: Path, args: list[str]) -> int:
    queue, code = Queue(root / "lsf"), 0
    for number in _options("bkill", args)[1]:
        job = queue.find(number)
        if job is None or job["state"] == "over":
            text = "Job has already finished" if job else "No matching job found"
            print(f"Job <{number}>: {text}", file=sys.stderr)
            code = 255
        else:
            queue.cancel(job)
            print(f"Job <{number}> is being terminated")
    return code


def jsrun(root: Path, args: list[str]) -> int:
    options, rest = _options("jsrun", args, is_short=True)
    hosts = os.environ.get("LSB_MCPU_HOSTS", "").split()[2::2]
    if not hosts or "JSM_NAMESPACE_RANK" in os.environ:
        print("Error: It is only possible to use js commands within a job allocation", file=sys.stderr)
        return 210
    sets = last(options, "-n", "--nrs")
    per_set = last(options, "-a", "--tasks_per_rs")
    tasks = last(options, "-p", "--np") or str(int(sets or len(hosts)) * int(per_set or 1))
    if not all(re.fullmatch(r"\d+", number or "1") for number in (sets, per_set, tasks)):
        print(f"Error: a number is expected: {args}", file=sys.stderr)
        return 210
    size = int(tasks)
    return run_all([
        (
            hosts[rank * len(hosts) // size],
            rest,
            {**os.environ, "JSM_NAMESPACE_RANK": str(rank), "JSM_NAMESPACE_SIZE": tasks, "PMIX_RANK": str(rank),
             "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": tasks},
        )
        for rank in range(size)
    ])  # fmt: skip


COMMANDS = {"bsub": bsub, "bjobs": bjobs, "bkill": bkill, "jsrun": jsrun}
