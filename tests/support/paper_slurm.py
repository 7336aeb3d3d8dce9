"""sbatch, squeue and scancel that only keep a list and run nothing: for tests of what Merlin asks and writes.

slurm = PaperSlurm(tmp_path / "slurm")  # put slurm.path before the PATH
slurm.set("1", "RUNNING", "Resources")
"""

from __future__ import annotations

import os
from pathlib import Path

_SBATCH = """#!/bin/sh
cd {folder} && echo sbatch >> calls
[ -f refuse ] && {{ echo "sbatch: error: Invalid account" >&2; exit 1; }}
[ -f down ] && {{ echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1; }}
id=$(($(wc -l < jobs) + 1))
name=$(sed -n 's/^#SBATCH --job-name=//p' "$2")
nodes=$(sed -n 's/^#SBATCH --nodes=//p' "$2")
echo "$id|PENDING|$nodes|0|2026-11-23T13:01:00|N/A|N/A|Priority||$name|" >> jobs
[ -f lose ] && kill -9 $$
echo "$id"
"""
_SQUEUE = """#!/bin/sh
cd {folder} && echo squeue >> calls
[ -f down ] && {{ echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }}
cat jobs
"""
_SCANCEL = """#!/bin/sh
cd {folder} && echo scancel >> calls
for id in "$@"; do sed -i "s/^$id|[A-Z]*|/$id|CANCELLED|/" jobs; done
"""


class PaperSlurm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "jobs").touch()
        for name, text in (
            ("sbatch", _SBATCH),
            ("squeue", _SQUEUE),
            ("scancel", _SCANCEL),
            ("srun", "#!/bin/sh\nexit 1\n"),
        ):
            (folder / name).write_text(text.format(folder=folder))
            (folder / name).chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH on which these commands come first."""
        return f"{self.folder}:{os.environ['PATH']}"

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().split() if path.exists() else []

    @property
    def states(self) -> dict[str, str]:
        return {line.split("|")[0]: line.split("|")[1] for line in self._lines()}

    def _lines(self) -> list[str]:
        return (self.folder / "jobs").read_text().splitlines()

    def set(self, job: str, state: str, reason: str = "") -> None:
        """Change the state of a job, and the reason for it."""
        lines = [line.split("|") for line in self._lines()]
        for words in lines:
            if words[0] == job:
                words[1], words[7] = state, reason
        (self.folder / "jobs").write_text("".join("|".join(words) + "\n" for words in lines))

    def fail(self, how: str) -> None:
        """From now on, Slurm is "down", "refuse"s jobs, or takes jobs and "lose"s its answers."""
        (self.folder / how).touch()

    def work_again(self) -> None:
        for how in ("down", "refuse", "lose"):
            (self.folder / how).unlink(missing_ok=True)
