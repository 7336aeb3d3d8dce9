"""Workers on the allocations of a real three-node Slurm: what they cost the scheduler, and what they waste."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measure import HERE, MERLIN, SPECS, fresh, median, only_workspace, ratio
from report import Row
from slurm_site import ALL_CORES, JobLife, Site, slurm_site

SLEEP_S = 0.05
PEER_SLEEP_S = 0.2  # with 600 samples, 20 s of all cores
DASK = HERE.parents[1] / ".cache" / "dask-jobqueue-0.9"
SPEC = SPECS / "allocated.yaml"


@dataclass(frozen=True)
class Run:
    """A study from its command to the release of the last node; times are epoch seconds."""

    submitted: float
    first: float  # task's begin
    last: float  # task's end
    num_again: int  # tasks that began more than once
    jobs: list[JobLife]
    num_calls: int
    num_submissions: int
    task_s: float  # of one task
    num_tasks: int

    @property
    def released(self) -> float:
        return max(job.ended for job in self.jobs)

    @property
    def busy(self) -> float:
        """Share of the allocated core-seconds, from the first task to the release, in which tasks ran."""
        allocated = sum(
            (job.ended - max(job.began, self.first)) * job.core_seconds / (job.ended - job.began)
            for job in self.jobs
        )
        return self.num_tasks * self.task_s / allocated

    @property
    def core_hours(self) -> float:
        return sum(job.core_seconds for job in self.jobs) / 3600

    @property
    def calls_per_minute(self) -> float:
        return self.num_calls / max(1.0, (self.released - self.submitted) / 60)


def _has_ended(folder: Path, num: int) -> bool:
    return sum(1 for _ in folder.rglob("ended")) >= num


def _measure(site: Site, folder: Path, num: int, task_s: float, act: Callable[[Path], None]) -> Run:
    """`act` has all samples run, and returns when every allocation is going to end by itself."""
    submitted = time.time()
    act(folder)
    site.wait_until_released()
    begun, ended = list(folder.rglob("begun")), list(folder.rglob("ended"))
    if len(ended) != num:
        raise RuntimeError(f"{len(ended)} of {num} samples have ended")
    calls = site.calls(submitted)
    return Run(
        submitted=submitted,
        first=min(path.stat().st_mtime for path in begun),
        last=max(path.stat().st_mtime for path in ended),
        num_again=sum(path.stat().st_size - 1 for path in begun),
        jobs=site.jobs(submitted),
        num_calls=len(calls),
        num_submissions=sum(line.startswith("sbatch ") for line in calls),
        task_s=task_s,
        num_tasks=num,
    )


# ------------------------------------------------------------------ the ways to run a study


def _variables(folder: Path, num: int, task_s: float) -> list[str]:
    return ["--vars", f"OUTPUT_PATH={folder}", f"N_SAMPLES={num}", f"SLEEP={task_s}"]


def _autoscaled(site: Site, num: int, task_s: float) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        site.merlin("run", str(SPEC), *_variables(folder, num, task_s), cwd=folder)
        site.merlin("workers", "autoscale", str(only_workspace(folder)), *_caps(), cwd=folder)

    return act


def _caps() -> list[str]:
    return ["--max", "3", "--nodes", "1"]


def _by_hand(site: Site, num: int, task_s: float) -> Callable[[Path], None]:
    """Workers on three nodes by a script of the user's own, who ends the job as soon as the last sample has ended."""

    def act(folder: Path) -> None:
        site.merlin("run", str(SPEC), *_variables(folder, num, task_s), cwd=folder)
        script = folder / "workers.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N 3 --ntasks-per-node=1 -c 2 -t 30\n{MERLIN} run-workers {SPEC} --foreground\n"
        )
        job = site.run("sbatch", "--parsable", str(script), cwd=folder).strip()
        site.wait(lambda: _has_ended(folder, num), 0.2)
        site.run("scancel", job, cwd=folder)

    return act


def _job_per_sample(site: Site, num: int, task_s: float) -> Callable[[Path], None]:
    """As Maestro: a job for every combination; without the minute that Maestro waits between two looks."""

    def act(folder: Path) -> None:
        for number in range(num):
            place = folder / f"{number:06d}"
            place.mkdir()
            script = place / "step.slurm.sh"
            script.write_text(
                f"#!/bin/bash\n#SBATCH -N 1 -n 1 -t 5\nprintf x >> begun; sleep {task_s}; printf x >> ended\n"
            )
            site.run("sbatch", "--parsable", str(script), cwd=place)

    return act


def _by_dask(site: Site, num: int, task_s: float) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        site.run(
            "env",
            "-u",
            "PYTHONPATH",  # it leads to our `distributed`
            _dask_python(),
            "-P",  # and so would the script's folder
            str(HERE / "dask_study.py"),
            str(num),
            str(task_s),
            str(folder),
            site.cluster.network.name,
            cwd=folder,
        )

    return act


def _dask_python() -> str:
    if not (DASK / "ready").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(DASK)], check=True)
        subprocess.run(
            [str(DASK / "bin/python"), "-m", "pip", "install", "-q", "dask-jobqueue==0.9.0", "distributed"],
            check=True,
        )
        (DASK / "ready").write_text("")
    return str(DASK / "bin" / "python")


# --------------------------------------------------------------------------- rows


def allocations(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Calls, busy cores and release of an autoscaled study, for a tenth of the samples and for all."""
    few, many = [], []
    with slurm_site(tmp / "site") as site:
        for _ in range(rounds):
            for size, found in ((num // 10, few), (num, many)):
                found.append(
                    _measure(site, fresh(tmp / "ours"), size, SLEEP_S, _autoscaled(site, size, SLEEP_S))
                )

    def calls(runs: list[Run]) -> float:
        return median([run.calls_per_minute for run in runs])

    release = [run.released - run.last for run in many]
    return [
        Row(
            f"commands of Slurm a minute during {num:,} samples, beside {num // 10:,}",
            f"{calls(many):.1f}", f"{calls(few):.1f}", f"{calls(many) / calls(few):.2f}×", "≤ 6", "",
        ),
        Row(
            f"busy over allocated core-seconds, {num:,} tasks of {SLEEP_S * 1000:.0f} ms on up to {ALL_CORES} cores",
            f"{100 * median([run.busy for run in many]):.0f} %", "", "", "≥ 95 %", "",
        ),
        Row(
            "from the end of the last task to the release of the last node",
            f"{median(release):.1f} s", "", "", "≤ 5 s", "",
        ),
    ]  # fmt: skip


def allocations_walltime(tmp: Path, rounds: int, num: int) -> list[Row]:
    """What runs again because allocations end in the middle of a study."""
    again = []
    with slurm_site(tmp / "site") as site:
        for _ in range(rounds):
            folder = fresh(tmp / "ours")

            def act(folder: Path = folder) -> None:
                site.merlin("run", str(SPEC), *_variables(folder, num, 0.5), cwd=folder)
                while not _has_ended(folder, num):
                    site.merlin(
                        "workers",
                        "submit",
                        str(only_workspace(folder)),
                        "--nodes",
                        "3",
                        "--walltime",
                        "00:01:00",
                        cwd=folder,
                    )
                    site.wait_until_released()

            again.append(_measure(site, folder, num, 0.5, lambda folder: act(folder)))
    lost = [run.num_again / max(1, len(run.jobs) - 1) for run in again]
    return [
        Row(
            f"tasks of 0.5 s that run again for each walltime that ends in {num:,} samples, on {ALL_CORES} cores",
            f"{median(lost):.1f}", "", "", f"≤ {ALL_CORES}", "",
        )
    ]  # fmt: skip


def allocations_compared(tmp: Path, rounds: int, num: int) -> list[Row]:
    """The same samples by four ways, in turn."""
    ways = {
        "a job per sample, as Maestro": _job_per_sample,
        "workers by a hand-written sbatch, ended by hand": _by_hand,
        "dask-jobqueue, adaptive": _by_dask,
    }
    ours: list[Run] = []
    others: dict[str, list[Run]] = {name: [] for name in ways}
    with slurm_site(tmp / "site") as site:
        for _ in range(rounds):
            ours.append(
                _measure(site, fresh(tmp / "ours"), num, PEER_SLEEP_S, _autoscaled(site, num, PEER_SLEEP_S))
            )
            for name, way in ways.items():
                others[name].append(
                    _measure(site, fresh(tmp / "other"), num, PEER_SLEEP_S, way(site, num, PEER_SLEEP_S))
                )
    rows = []
    for name, runs in others.items():
        mine, theirs = [r.last - r.submitted for r in ours], [r.last - r.submitted for r in runs]
        rows.append(
            Row(f"{num} samples of {PEER_SLEEP_S} s to the last one, against {name}", f"{median(mine):.1f} s",
                f"{median(theirs):.1f} s", f"{ratio(theirs, mine):.2f}×", "≥ 1×", "")
        )  # fmt: skip
        mine, theirs = [r.core_hours for r in ours], [r.core_hours for r in runs]
        rows.append(
            Row(f"core-seconds allocated for that, against {name}", f"{3600 * median(mine):.0f}",
                f"{3600 * median(theirs):.0f}", f"{ratio(theirs, mine):.2f}×", "≥ 1×", "")
        )  # fmt: skip
    return rows
