"""Schedulers that are not installed, for tests: their programs, a few nodes, and ways to make them fail.

They check their options against the tables of the real tools, run jobs as real processes with the variables of the
real scheduler, end them by walltime and on request, and end all that a job left behind.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

CORES = 2  # of a node
_HERE = Path(__file__).parent
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "flux": ("flux",),
    "lsf": ("bsub", "bjobs", "bkill", "jsrun"),
    "pbs": ("qsub", "qstat", "qdel", "qselect", "mpiexec"),
}


class StandIn:
    """One scheduler in a folder. `variables` are to be set where its programs are called.

    `login` are variables that a login sets: a job of PBS gets no other variables from the submitting shell.
    """

    def __init__(
        self, folder: Path, scheduler: str, *, num_nodes: int = 3, login: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.scheduler = folder, scheduler
        (folder / "faults").mkdir(parents=True)
        (folder / "home").mkdir()
        (folder / "bin").mkdir()
        (folder / scheduler / "jobs").mkdir(parents=True)
        (folder / scheduler / "number").write_text("100")
        hosts = [f"node{k + 1}" for k in range(num_nodes)]
        about = {"hosts": hosts, "cores": CORES, "job": ""}
        (folder / scheduler / "queue.json").write_text(json.dumps(about))
        self.path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        profile = {"PATH": self.path, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        profile |= login or {}
        (folder / "profile.json").write_text(json.dumps(profile))
        for program in PROGRAMS[scheduler]:
            words = [sys.executable, "-I", "-S", str(_HERE / "program.py"), str(folder), program]
            file = folder / "bin" / program
            file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            file.chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": self.path}

    @property
    def calls(self) -> list[list[str]]:
        """Every command line so far."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def job(self, job: str) -> dict[str, object]:
        return dict(json.loads((self._folder_of(job) / "job.json").read_text()))

    def lose_node(self, job: str) -> None:
        """The node of this job dies."""
        (self._folder_of(job) / "lose").touch()

    def _folder_of(self, job: str) -> Path:
        folder = self.folder / self.scheduler / "jobs"
        return next(path for path in folder.iterdir() if path.name.replace("ƒ", "f") == job)

    def let_pass(self, job: str, seconds: float) -> None:
        """Let so much more of the job's walltime have passed than the clock says."""
        new = self._folder_of(job) / "passed_s.new"
        new.write_text(str(seconds))
        new.rename(new.with_suffix(""))

    def fault(self, program: str, *, code: int = 1, prints: str = "", hangs: bool = False) -> None:
        """`program` (or ``flux-jobs``) fails, prints something else, or hangs, until `heal`."""
        (self.folder / "faults" / program).write_text(
            json.dumps({"code": code, "prints": prints, "hangs": hangs})
        )

    def heal(self) -> None:
        for path in (self.folder / "faults").iterdir():
            path.unlink()

    def close(self) -> None:
        """End every process of every job."""
        mine = str(self.folder).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    marks = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                is_program = mine in words
                if is_program or any(m.startswith(b"STAND_IN_JOB_") and mine in m for m in marks):
                    os.kill(int(entry.name), signal.SIGKILL)
