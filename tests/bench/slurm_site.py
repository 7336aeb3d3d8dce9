"""A three-node Slurm with a Redis that its nodes reach, where every command of Slurm that anybody runs is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deployment import write_config
from measure import MERLIN
from servers import RedisServer
from slurm import CORES, NODES, SlurmCluster, slurm_cluster

COUNTED = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
LIMIT_S = 900.0
_COUNT = '#!/bin/sh\necho "$(date +%s.%N) {name} $*" >> {calls}\nexec {program} "$@"\n'
_NOTE = '#!/bin/sh\necho "$(date +%s.%N) $SLURM_JOB_ID {what} $SLURM_JOB_CPUS_PER_NODE" >> {jobs}\n'


@dataclass(frozen=True)
class JobLife:
    """From the moment that its nodes were given to it to their release, in epoch seconds."""

    began: float
    ended: float
    num_cores: int

    @property
    def core_seconds(self) -> float:
        return (self.ended - self.began) * self.num_cores


class Site:
    """See the module."""

    def __init__(self, folder: Path, cluster: SlurmCluster, env: dict[str, str]) -> None:
        self.folder, self.cluster, self.env = folder, cluster, env

    def run(self, *words: str, cwd: Path) -> str:
        """A command on the login node, to its end."""
        done = subprocess.run(words, cwd=cwd, env=self.env, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout[-1500:]}{done.stderr[-3000:]}")
        return done.stdout

    def merlin(self, *words: str, cwd: Path) -> str:
        return self.run(MERLIN, *words, cwd=cwd)

    def calls(self, since: float) -> list[str]:
        """The commands of Slurm that were run since then."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split(" ", 1)[1] for line in lines if float(line.split()[0]) >= since]

    def jobs(self, since: float) -> list[JobLife]:
        """Those that began since then; all of them have to be over."""
        began: dict[str, tuple[float, int]] = {}
        found = []
        for line in (self.folder / "jobs").read_text().splitlines():
            at, job, what, cores = line.split()
            if what == "began" and float(at) >= since:
                began[job] = float(at), _num_cores(cores)
            elif job in began:
                start, num_cores = began.pop(job)
                found.append(JobLife(start, float(at), num_cores))
        if began:
            raise RuntimeError(f"jobs that run still: {sorted(began)}")
        return found

    def wait_until_released(self) -> None:
        """No job runs or waits; asks Slurm by commands that are not counted."""
        deadline = time.monotonic() + LIMIT_S
        while self.cluster.run("squeue", "--noheader").strip():
            if time.monotonic() > deadline:
                raise RuntimeError("not within the limit of time\n" + self.cluster.describe()[-6000:])
            time.sleep(0.1)


@contextmanager
def slurm_site(folder: Path) -> Iterator[Site]:
    """A site whose files are in `folder`; its nodes are empty."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = folder / "programs"
    programs.mkdir()
    for name in COUNTED:
        _write_program(
            programs / name, _COUNT.format(name=name, calls=folder / "calls", program=shutil.which(name))
        )
    hooks = {}
    for what, key in (("began", "PrologSlurmctld"), ("ended", "EpilogSlurmctld")):
        _write_program(folder / what, _NOTE.format(what=what, jobs=folder / "jobs"))
        hooks[key] = str(folder / what)
    with (
        slurm_cluster(settings=hooks) as cluster,
        RedisServer(folder, host=cluster.network.address) as redis,
    ):
        write_config(folder / "home", cluster.network.address, redis.port)
        env = {k: v for k, v in cluster.environment.items() if not k.startswith("MERLIN_")}
        env |= {"HOME": str(folder / "home"), "C_FORCE_ROOT": "1"}
        env |= {"PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"}
        yield Site(folder, cluster, env)


def _num_cores(text: str) -> int:
    """Of all nodes of a job, from "2(x3),1"."""
    parts = (part.rstrip(")").partition("(x") for part in text.split(","))
    return sum(int(cores) * int(times or 1) for cores, _, times in parts)


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


ALL_CORES = CORES * len(NODES)
