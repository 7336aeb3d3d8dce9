"""What `flux` does here: instances with nodes of their own, jobs in them, programs on their nodes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import string
import sys
import time
from pathlib import Path

from options import FLUX, UnknownOptionError, last, read_options
from processes import exit_code, pause, run_all, start
from queue_of_jobs import Job, Queue, run_in_background

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 60}
_INACTIVE = {"cancel": "CA", "timeout": "TO"}
_NAMES = {
    "-N": "--nodes",
    "-n": "--ntasks",
    "--nslots": "--ntasks",
    "-c": "--cores",
    "--cores-per-task": "--cores",
    "--cores-per-slot": "--cores",
    "-t": "--time-limit",
    "-x": "--exclusive",
}


class FluxError(Exception):
    """What the real tool says, and its exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def main(root: Path, args: list[str]) -> int:
    is_parent = args[:1] == ["--parent"]
    args = args[is_parent:]
    name = " ".join(args[:2]) if args[:1] == ["job"] else args[0] if args else ""
    if name == "version":
        print("commands:    \t\t0.88.0")
        return 0
    if name not in FLUX:
        raise FluxError(f"flux: `{name}' is not a flux command.  See 'flux --help'")
    try:
        options, rest = read_options(args[len(name.split()) :], FLUX[name])
    except UnknownOptionError as error:
        raise FluxError(f"flux {name}: error: unrecognized arguments: {error}", 2) from error
    if name == "start":
        return _start(root, options, rest)
    return COMMANDS[name](_instance(root, is_parent=is_parent), options, rest)


def _instance(root: Path, *, is_parent: bool = False) -> Queue:
    """The instance that FLUX_URI names, else that of the machine."""
    match = re.fullmatch(r"local://(.+)/local-\d+", os.environ.get("FLUX_URI", ""))
    folder = Path(match[1]) if match else root / "flux"
    if is_parent:
        folder = folder.parents[2] if folder != root / "flux" else folder
    if not (folder / "queue.json").exists():
        raise FluxError("flux: ERROR: Unable to connect to Flux: broker socket was not found")
    return Queue(folder)


def _environment(instance: Queue, rank: int = 0, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLUX_")}
    inner = {"FLUX_URI": f"local://{instance.folder}/local-{rank}", "FLUX_EXEC_PATH": "/usr/libexec/flux/cmd"}
    return kept | inner | ({"FLUX_ENCLOSING_ID": instance.job} if instance.job else {}) | more


def _id(instance: Queue) -> str:
    number, text = 58**6 + instance.next_number() * 58**2, ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    return ("ƒ" if "UTF-8" in sys.stdout.encoding.upper() else "f") + text


def _duration(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)(ms|s|m|h|d)?", text)
    if not match:
        raise FluxError(
            f"flux-job: error: argument -t/--time-limit: invalid Flux standard duration '{text}'", 2
        )
    return float(match[1]) * _UNITS[match[2] or ""]


def _job(instance: Queue, options: list[tuple[str, str]], argv: list[str], *, is_batch: bool) -> Job:
    given = {_NAMES.get(name, name): value for name, value in options}
    if "--exclusive" in given and "--nodes" not in given:
        raise FluxError("flux: ERROR: Number of nodes not set with exclusive node allocation")
    nodes, tasks = int(given.get("--nodes", 1)), int(given.get("--ntasks", given.get("--nodes", 1)))
    if nodes > tasks:
        raise FluxError(f"flux: ERROR: node count of {nodes} is greater than the number of tasks ({tasks})")
    is_whole = "--exclusive" in given or ("--nodes" in given and "--ntasks" not in given)
    walltime = _duration(given["--time-limit"]) if "--time-limit" in given else 0
    signal_at = re.fullmatch(r"(?:SIG)?USR1@(.+)", given.get("--signal", ""))
    job = _id(instance)
    output = given.get("--output", f"flux-{job}.out" if is_batch else "")
    return {
        "id": job, "name": given.get("--job-name", Path(argv[0]).name), "nodes": nodes, "tasks": tasks,
        "cores": None if is_whole else -(-tasks // nodes) * int(given.get("--cores", 1)), "walltime_s": walltime,
        "warning": _duration(signal_at[1]) if signal_at else 0, "files": [output, given.get("--error", "")],
        "cwd": given.get("--cwd", os.getcwd()), "may_rerun": False, "argv": argv,
    }  # fmt: skip


def batch(instance: Queue, options: list[tuple[str, str]], rest: list[str]) -> int:
    if "--wrap" in dict(options):
        text = f"#!/bin/sh\n{shlex.join(rest)}\n"
    else:
        text = Path(rest[0]).read_text() if rest else sys.stdin.read()
    job = _job(
        instance,
        [*_directives(text, rest[0] if rest else "stdin"), *options],
        rest or ["stdin"],
        is_batch=True,
    )
    instance.add(job)
    copy = instance.path(job["id"]) / "script"
    copy.write_text(text)
    copy.chmod(0o700)
    print(job["id"], flush=True)

    def program(job: Job) -> tuple[list[str], dict[str, str]]:
        folder = instance.path(job["id"]) / "instance"
        shutil.rmtree(folder, ignore_errors=True)
        inner = Queue.make(folder, job["hosts"], instance.cores, job["id"])
        return [str(copy), *rest[1:]], _environment(inner)

    run_in_background(instance, job, program)
    return 0


def _directives(text: str, name: str) -> list[tuple[str, str]]:
    """The options in the header; one behind the first command is an error."""
    found, header = [], True
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\W*\s*flux:(.*)", line)
        header = header and (line.startswith("#") or not line.strip())
        if match and not header:
            raise FluxError(f"flux-batch: ERROR: {name}: line {number}: orphan 'flux:' detected")
        try:
            found += read_options(shlex.split(match[1]), FLUX["batch"])[0] if match else []
        except UnknownOptionError as error:
            raise FluxError(
                f"flux-batch: ERROR: argument parsing failed at {name} line {number}\n{error}"
            ) from error
    return found


def _tasks(instance: Queue, job: Job, argv: list[str]) -> list[tuple[str, list[str], dict[str, str]]]:
    return [
        (
            job["hosts"][rank * job["nodes"] // job["tasks"]],
            argv,
            _environment(
                instance, FLUX_JOB_ID=job["id"], FLUX_JOB_NNODES=str(job["nodes"]), FLUX_JOB_SIZE=str(job["tasks"]),
                FLUX_TASK_RANK=str(rank), PMI_RANK=str(rank), PMI_SIZE=str(job["tasks"]),
            ),
        )
        for rank in range(job["tasks"])
    ]  # fmt: skip


def run(instance: Queue, options: list[tuple[str, str]], rest: list[str]) -> int:
    job = _job(instance, options, rest, is_batch=False)
    instance.add(job)
    while not instance.take_nodes(job):
        pause()
    code = run_all(_tasks(instance, job, rest))
    instance.save(job, state="over", code=code, ended=time.time())
    return code


def exec_(instance: Queue, options: list[tuple[str, str]], rest: list[str]) -> int:
    ranks = _ranks(last(options, "-r", "--rank", default="all"), len(instance.hosts))
    return run_all([(instance.hosts[rank], rest, _environment(instance, rank)) for rank in ranks])


def _ranks(text: str, size: int) -> list[int]:
    if text == "all":
        return list(range(size))
    first, dash, end = text.partition("-")
    if dash and first == end:
        raise FluxError(f"flux-exec: failed to decode idset '{text}': Invalid argument")
    ranks = list(range(int(first), int(end or first) + 1))
    if ranks[-1] >= size:
        raise FluxError(f"flux-exec: Error: rank {ranks[-1]}: No route to host", 68)
    return ranks


def _start(root: Path, options: list[tuple[str, str]], rest: list[str]) -> int:
    size = int(last(options, "-s", "--test-size", default="1"))
    folder = root / f"started-{os.getpid()}"
    instance = Queue.make(folder, [f"node{k + 1}" for k in range(size)], Queue(root / "flux").cores)
    env = {k: v for k, v in _environment(instance).items() if k != "FLUX_ENCLOSING_ID"}
    code = exit_code(os.waitpid(start("", rest, env), 0)[1])
    shutil.rmtree(folder)
    return code


def jobs(instance: Queue, options: list[tuple[str, str]], rest: list[str]) -> int:
    template = last(options, "-o", "--format")
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    known = {"f" + job["id"][1:]: job for job in instance.jobs()}
    wanted = [known.get("f" + word[1:]) for word in rest]
    for word, job in zip(rest, wanted, strict=True):
        if not re.fullmatch("[fƒ][1-9A-Za-z]+", word):
            raise FluxError(f"flux-jobs: error: argument JOBID: invalid JobID value: '{word}'", 2)
        if job is None:
            print(f"JobID {word} unknown", file=sys.stderr)
    if not rest:
        wanted = [job for job in known.values() if "-a" in dict(options) or job["state"] != "over"]
    for job in wanted:
        for name in names if job else ():
            if name not in _fields(job):
                raise FluxError(f"flux-jobs: ERROR: Unknown format field: {name}")
    shown = [template.format_map(_Fields(_fields(job))) for job in wanted if job]
    print("\n".join(shown), end="\n" if shown else "")
    return 0 if shown or not rest else 1


class _Fields(dict[str, str]):
    """Names with dots, for str.format."""

    def __missing__(self, key: str) -> _Part:
        return _Part(self, key)


class _Part:
    def __init__(self, fields: dict[str, str], name: str) -> None:
        self._fields, self._name = fields, name

    def __getattr__(self, name: str) -> str:
        return self._fields[f"{self._name}.{name}"]


def _fields(job: Job) -> dict[str, str]:
    is_over, started = job["state"] == "over", job["started"] or 0.0
    code, why = job["code"], job["reason"]
    status = {"pending": "S", "running": "R"}.get(job["state"])
    status = status or _INACTIVE.get(why) or ("CD" if code == 0 else "F")
    return {
        "id.f58": job["id"], "name": job["name"], "status_abbrev": status, "nnodes": str(job["nodes"]),
        "nodelist": ",".join(job["hosts"]), "t_submit": str(job["submitted"]), "t_run": str(started),
        "expiration": str(started + job["walltime_s"] if started and job["walltime_s"] else 0.0),
        "returncode": str(code) if is_over and code is not None else "",
        "exception.type": {"lose": "node-failure"}.get(why, why), "exception.note": "",
    }  # fmt: skip


def cancel(instance: Queue, options: list[tuple[str, str]], rest: list[str]) -> int:
    known, code = {"f" + job["id"][1:]: job for job in instance.jobs()}, 0
    for word in rest:
        job = known.get("f" + word[1:])
        if job is None or job["state"] == "over":
            print(
                f"flux-cancel: ERROR: {word}: {'job is inactive' if job else 'unknown job id'}",
                file=sys.stderr,
            )
            code = 1
        else:
            instance.cancel(job)
    return code


def getattr_(instance: Queue, options: list[tuple[str, str]], rest: list[str]) -> int:
    values = {"size": str(len(instance.hosts)), "hostlist": ",".join(instance.hosts), "jobid": instance.job}
    if not values.get(rest[0]):
        raise FluxError(f"flux-getattr: {rest[0]}: No such file or directory")
    print(values[rest[0]])
    return 0


def timeleft(instance: Queue, options: list[tuple[str, str]], rest: list[str]) -> int:
    folder = instance.folder.parents[2] if instance.job else instance.folder
    outer = Queue(folder)
    job = outer.find(instance.job) if instance.job else None
    limited = job and job["walltime_s"]
    print(int(job["started"] + job["walltime_s"] - outer.now(job)) if job and limited else 4294967295)
    return 0


COMMANDS = {
    "batch": batch, "run": run, "exec": exec_, "jobs": jobs, "cancel": cancel, "getattr": getattr_,
    "job timeleft": timeleft,
}  # fmt: skip
