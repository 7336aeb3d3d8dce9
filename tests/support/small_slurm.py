"""A stand-in for Slurm on this machine: `sbatch`, `squeue` and `scancel` on the PATH, whose jobs are processes.

A test can end jobs without Merlin's knowledge, and count the commands that were called.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

_PROGRAM = """#!{python}
import sys
sys.path.insert(0, {support!r})
from small_slurm import SmallSlurm
from pathlib import Path
sys.exit(SmallSlurm(Path({root!r})).command({name!r}, sys.argv[1:]))
"""


class SmallSlurm:
    """The state of the cluster: a folder with a file per fact."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls_file = root / "calls"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> SmallSlurm:
        (self.root / "bin").mkdir(parents=True)
        for name in ("sbatch", "squeue", "scancel"):
            program = self.root / "bin" / name
            program.write_text(
                _PROGRAM.format(
                    python=sys.executable, support=str(Path(__file__).parent), root=str(self.root), name=name
                )
            )
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.root / 'bin'}:{os.environ['PATH']}")
        return self

    # ------------------------------------------------------------------ for tests

    def jobs(self) -> list[str]:
        return sorted((p.name for p in self.root.iterdir() if p.name.isdecimal()), key=int)

    def state(self, job: str) -> str:
        return (self.root / job / "state").read_text()

    def set_state(self, job: str, state: str) -> None:
        temporary = self.root / job / f"state.{os.getpid()}"
        temporary.write_text(state)
        temporary.replace(self.root / job / "state")

    def calls(self, name: str) -> int:
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return sum(line.split()[0] == name for line in lines)

    def kill(self, job: str, state: str) -> None:
        """End a job at once, as when its node fails or its walltime is over."""
        self.set_state(job, state)
        with suppress(ProcessLookupError, FileNotFoundError):
            pid = int((self.root / job / "pid").read_text())
            for session in {pid, *_sessions_below(pid)}:
                _kill_session(session)

    def close(self) -> None:
        for job in self.jobs():
            self.kill(job, "CANCELLED")

    # ------------------------------------------------------------------ the commands

    def command(self, name: str, args: list[str]) -> int:
        with self.calls_file.open("a") as calls:
            calls.write(" ".join([name, *args]) + "\n")
        if name == "sbatch":
            return self._submit(Path(args[-1]))
        if name == "squeue":
            return self._list()
        assert name == "scancel", name
        for job in args:
            self._cancel(job)
        return 0

    def _cancel(self, job: str) -> None:
        self.set_state(job, "CANCELLED")
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(int((self.root / job / "pid").read_text()), signal.SIGTERM)

    def _submit(self, script: Path) -> int:
        number = 1
        while True:
            with suppress(FileExistsError):
                (self.root / str(number)).mkdir()
                break
            number += 1
        job = self.root / str(number)
        (job / "script").write_text(script.read_text())
        self.set_state(job.name, "PENDING")
        self._start(job.name)
        print(number)
        return 0

    def _start(self, job: str) -> None:
        script = self.root / job / "script"
        output = self.directive(job, "output")
        self.set_state(job, "RUNNING")
        if os.fork():
            return
        os.setsid()
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, to in ((null, 0), (out, 1), (out, 2)):
            os.dup2(fd, to)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.execve("/bin/sh", ["/bin/sh", str(script)], {**os.environ, "SLURM_JOB_ID": job})
        (self.root / job / "pid").write_text(str(pid))
        _, status = os.waitpid(pid, 0)
        if self.state(job) == "RUNNING":
            self.set_state(job, "FAILED" if status else "COMPLETED")
        os._exit(0)

    def directive(self, job: str, name: str) -> str:
        lines = (self.root / job / "script").read_text().splitlines()
        return next((li.partition("=")[2] for li in lines if li.startswith(f"#SBATCH --{name}=")), "")

    def _list(self) -> int:
        for job in self.jobs():
            state = self.state(job)
            reason = "Priority" if state == "PENDING" else "None"
            fields = [job, state, "1", "0", "N/A", "N/A", "N/A", reason, "", self.directive(job, "job-name")]
            print("|".join(fields) + "|")
        return 0


def _sessions_below(pid: int) -> set[int]:
    """The sessions that descendants of a process lead."""
    from merlin.base.processes import all_processes

    found, parents = set[int](), {pid}
    processes = list(all_processes())
    while more := {p.pid for p in processes if p.parent in parents} - parents:
        parents |= more
    for process in processes:
        if process.pid in parents:
            found.add(process.session)
    return found


def _kill_session(session: int) -> None:
    from merlin.base.processes import all_sessions

    for process in all_sessions().get(session, []):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
