"""Jobs as files: a queue of one scheduler (or one instance of Flux), its nodes, and who runs the jobs."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import detach, exit_code, marked, pause, signal_all, start

GRACE_S = 1.0  # between SIGTERM and SIGKILL
Job = dict[str, Any]


class Queue:
    """`hosts` with `cores` each, and the jobs for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = json.loads((folder / "queue.json").read_text())
        self.hosts: list[str] = about["hosts"]
        self.cores: int = about["cores"]
        self.job: str = about["job"]  # whose allocation this is

    @classmethod
    def make(cls, folder: Path, hosts: list[str], cores: int, job: str = "") -> Queue:
        (folder / "jobs").mkdir(parents=True)
        (folder / "number").write_text("100")
        (folder / "queue.json").write_text(json.dumps({"hosts": hosts, "cores": cores, "job": job}))
        return cls(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def next_number(self) -> int:
        with self.locked():
            number = int((self.folder / "number").read_text()) + 1
            (self.folder / "number").write_text(str(number))
        return number

    def path(self, job: str) -> Path:
        return self.folder / "jobs" / job

    def jobs(self) -> list[Job]:
        found = []
        for path in sorted((self.folder / "jobs").glob("*/job.json"), key=lambda p: p.stat().st_ino):
            found.append(json.loads(path.read_text()))
        return sorted(found, key=lambda job: job["submitted"])

    def find(self, job: str) -> Job | None:
        try:
            return dict(json.loads((self.path(job) / "job.json").read_text()))
        except (OSError, ValueError):
            return None

    def save(self, job: Job, **changes: Any) -> None:
        job.update(changes)
        new = self.path(job["id"]) / f"job.{os.getpid()}"
        new.write_text(json.dumps(job))
        new.rename(self.path(job["id"]) / "job.json")

    def add(self, job: Job) -> None:
        """`job` says: id, name, nodes, cores (per node, None: all), walltime_s, warning, files, cwd, may_rerun."""
        self.path(job["id"]).mkdir()
        self.save(
            job, state="pending", code=None, reason="", submitted=time.time(), started=None, ended=None, hosts=[],
            restarts=0,
        )  # fmt: skip

    def cancel(self, job: Job, why: str = "cancel") -> None:
        (self.path(job["id"]) / why).touch()

    def now(self, job: Job) -> float:
        """The time for this job, which a test may move forward."""
        passed = self.path(job["id"]) / "passed_s"
        return time.time() + (float(passed.read_text()) if passed.exists() else 0.0)

    def take_nodes(self, job: Job) -> bool:
        """Give the job its nodes, if they are free now."""
        with self.locked():
            used = dict.fromkeys(self.hosts, 0)
            for other in self.jobs():
                for host in other["hosts"] if other["state"] == "running" else ():
                    used[host] += other["cores"] or self.cores
            need = job["cores"] or self.cores
            free = [host for host in self.hosts if used[host] + need <= self.cores]
            if len(free) < job["nodes"]:
                return False
            self.save(job, hosts=free[: job["nodes"]], state="running", started=time.time())
        return True

    def why_end(self, job: Job) -> str:
        """ "cancel", "lose" (its node dies) or "timeout", if the job has to end now; "" if not."""
        for why in ("cancel", "lose"):
            if (self.path(job["id"]) / why).exists():
                return why
        started, limit = job["started"], job["walltime_s"]
        return "timeout" if started and limit and self.now(job) >= started + limit else ""

    def run(self, job: Job, program: Callable[[Job], tuple[list[str], dict[str, str]]]) -> None:
        """Wait for nodes, run the job to its end; `program` says its command line and environment."""
        while job["state"] == "pending":
            if why := self.why_end(job):
                self.save(job, state="over", reason=why, ended=time.time())
            elif self.take_nodes(job):
                self._run_once(job, *program(job))
            else:
                pause()

    def _run_once(self, job: Job, argv: list[str], env: dict[str, str]) -> None:
        key = f"STAND_IN_JOB_{len(self.folder.parts)}"  # one for each of the instances around this one
        value = f"{self.path(job['id'])}/{job['restarts']}"
        mark = f"{key}={value}"
        pid = start(job["hosts"][0], argv, {**env, key: value}, cwd=job["cwd"], files=tuple(job["files"]))
        code, why = self._watch(job, pid, mark)
        _end_all(mark)
        if why == "lose" and job["may_rerun"]:
            (self.path(job["id"]) / "lose").unlink()
            self.save(job, state="pending", hosts=[], started=None, restarts=job["restarts"] + 1)
        else:
            self.save(job, state="over", code=code, reason=why, ended=time.time())

    def _watch(self, job: Job, pid: int, mark: str) -> tuple[int, str]:
        warned, why, hard_at = not job["warning"], "", 0.0
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return exit_code(status), why
            now = time.time()
            if not warned and self.now(job) >= job["started"] + job["walltime_s"] - job["warning"]:
                signal_all(marked(mark), signal.SIGUSR1)
                warned = True
            if not why and (why := self.why_end(job) if self.folder.exists() else "cancel"):
                signal_all(marked(mark), signal.SIGKILL if why == "lose" else signal.SIGTERM)
                hard_at = now + GRACE_S
            if why and now > hard_at:
                signal_all(marked(mark), signal.SIGKILL)
            pause()


def _end_all(mark: str) -> None:
    """End all processes that a job has left behind, as the cgroup of a scheduler does."""
    hard_at = time.time() + GRACE_S
    while pids := marked(mark):
        signal_all(pids, signal.SIGTERM if time.time() < hard_at else signal.SIGKILL)
        pause()


def run_in_background(
    queue: Queue, job: Job, program: Callable[[Job], tuple[list[str], dict[str, str]]]
) -> None:
    if detach():
        try:
            queue.run(job, program)
        finally:
            os._exit(0)
