"""A stand-in for Slurm's commands at the PATH: jobs are lines in a file, and a file says how a command fails."""

from __future__ import annotations

from pathlib import Path

from merlin.batch.jobs import SchedulerClient
from merlin.batch.slurm import Slurm

SBATCH = """#!/bin/sh
cd {folder}
env > environment
name=$(sed -n 's/^#SBATCH --job-name=//p' "$2")
id=$(($(wc -l < jobs) + 1))
[ -f refuse ] && {{ echo "sbatch: error: Batch job submission failed: Invalid account" >&2; exit 1; }}
[ -f die ] && kill -9 $$
echo "$id|PENDING|1|0|2026-11-23T13:01:00|N/A|N/A|Priority||$name|" >> jobs
[ -f lose ] && kill -9 $$
[ -f hang ] && exec sleep 600
echo "$id"
"""
SQUEUE = """#!/bin/sh
cd {folder}
echo asked >> questions
env > environment
[ -f down ] && {{ echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }}
[ -f garbled ] && {{ echo "ERROR: site plugin"; exit 0; }}
cat jobs
"""
SCANCEL = """#!/bin/sh
cd {folder}
[ -f refuse ] && {{ echo "scancel: error: Access denied" >&2; exit 1; }}
for id in "$@"; do sed -i "s/^$id|[A-Z]*|/$id|CANCELLED|/" jobs; done
"""


class StandIn:
    """Commands in a folder, and what they know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        folder.mkdir()
        (folder / "jobs").touch()
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)):
            (folder / name).write_text(text.format(folder=folder))
            (folder / name).chmod(0o755)

    def client(self, limit_s: float = 120.0, **variables: str) -> SchedulerClient:
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin", **variables}
        return SchedulerClient(Slurm(), environment=environment, limit_s=limit_s, clock=lambda: self.now)

    def fail(self, how: str) -> None:
        (self.folder / how).touch()

    def work_again(self) -> None:
        for how in ("refuse", "lose", "die", "hang", "down", "garbled"):
            (self.folder / how).unlink(missing_ok=True)

    def script(self, name: str) -> str:
        path = self.folder / f"{name}.sh"
        path.write_text(f"#!/bin/sh\n#SBATCH --job-name={name}\n")
        return str(path)

    def set_state(self, job: str, state: str) -> None:
        path = self.folder / "jobs"
        lines = [line.split("|") for line in path.read_text().splitlines()]
        path.write_text(
            "".join("|".join([w[0], state if w[0] == job else w[1], *w[2:]]) + "\n" for w in lines)
        )

    def forget(self) -> None:
        (self.folder / "jobs").write_text("")

    @property
    def num_jobs(self) -> int:
        return len((self.folder / "jobs").read_text().splitlines())

    @property
    def num_questions(self) -> int:
        path = self.folder / "questions"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def environment(self) -> str:
        return (self.folder / "environment").read_text()
