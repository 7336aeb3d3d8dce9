"""Workers on the allocations of a real three-node Slurm: what they cost the scheduler, and what they waste."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measure import HERE, MERLIN, SPECS, fresh, median, only_workspace, ratio
from peer import installed
from report import Row, floor
from slurm_site import ALL_CORES, JobLife, Site, slurm_site

SLEEP_S = 0.05
PEER_SLEEP_S = 0.2  # with 600 samples, 20 s of all cores
WALLTIME_S = 60  # the least that Slurm has
LONG_S = 1.25 * WALLTIME_S  # of all cores: one walltime ends in the middle
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
    task_s: float  # of all tasks, from the begin of each to its end

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
        return self.task_s / allocated

    @property
    def core_seconds(self) -> float:
        return sum(job.core_seconds for job in self.jobs)

    @property
    def calls_per_minute(self) -> float:
        return self.num_calls / max(1.0, (self.released - self.submitted) / 60)


def _measure(site: Site, folder: Path, num: int, act: Callable[[Path], None]) -> Run:
    """`act` has all samples run, and returns when every allocation is going to end by itself."""
    submitted = time.time()
    act(folder)
    site.wait_until_released()
    begun, ended = ([path.stat() for path in folder.rglob(name)] for name in ("begun", "ended"))
    if len(ended) != num:
        raise RuntimeError(f"{len(ended)} of {num} samples have ended")
    return Run(
        submitted=submitted,
        first=min(stat.st_mtime for stat in begun),
        last=max(stat.st_mtime for stat in ended),
        num_again=sum(stat.st_size - 1 for stat in begun),
        jobs=site.jobs(submitted),
        num_calls=len(site.calls(submitted)),
        task_s=sum(stat.st_mtime for stat in ended) - sum(stat.st_mtime for stat in begun),
    )


# ------------------------------------------------------------------ the ways to run a study


def _variables(folder: Path, num: int, task_s: float) -> list[str]:
    return ["--vars", f"OUTPUT_PATH={folder}", f"N_SAMPLES={num}", f"SLEEP={task_s}"]


def _autoscaled(
    site: Site, num: int, task_s: float, max_nodes: int = 3, nodes_per_job: int = 2
) -> Callable[[Path], None]:
    caps = (f"MAX_NODES={max_nodes}", f"NODES={min(nodes_per_job, max_nodes)}")

    def act(folder: Path) -> None:
        site.merlin("run", str(SPEC), "--autoscale", *_variables(folder, num, task_s), *caps, cwd=folder)

    return act


def _by_hand(site: Site, num: int, task_s: float) -> Callable[[Path], None]:
    """Workers of ours on three nodes at once, by a script of the user's own; they leave when nothing is left to do."""

    def act(folder: Path) -> None:
        site.merlin("run", str(SPEC), *_variables(folder, num, task_s), cwd=folder)
        script = folder / "workers.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N 3 --ntasks-per-node=1 -c 2 -t 30\n{MERLIN} run-workers {SPEC} --foreground\n"
        )
        site.run("sbatch", "--parsable", str(script), cwd=folder)

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
        python = str(installed(DASK, "dask-jobqueue==0.9.0", "distributed") / "python")
        # PYTHONPATH leads to our `distributed`, and so would the script's folder without -P
        words = ["env", "-u", "PYTHONPATH", python, "-P", str(HERE / "dask_study.py")]
        site.run(*words, str(num), str(task_s), str(folder), site.cluster.network.name, cwd=folder)

    return act


# --------------------------------------------------------------------------- rows


def allocations(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Calls, busy cores and release of an autoscaled study: all samples, a tenth of them, and these on one node."""
    few, one_node, many = [], [], []
    with slurm_site(tmp / "site") as site:
        for _ in range(rounds):
            for size, max_nodes, found in ((num // 10, 3, few), (num // 10, 1, one_node), (num, 3, many)):
                way = _autoscaled(site, size, SLEEP_S, max_nodes)
                found.append(_measure(site, fresh(tmp / "ours"), size, way))
    busy = 100 * median([run.busy for run in many])
    release_s = median([run.released - run.last for run in many])
    what = f"busy over allocated core-seconds, {num:,} tasks of {SLEEP_S * 1000:.0f} ms on up to {ALL_CORES} cores"
    release = "from the end of the last task to the release of the last node"
    return [
        _calls_in_size(num, many, few),
        _calls_in_workers(num // 10, few, one_node),
        Row(what, f"{busy:.1f} %", floor=floor("≥ 95 %", busy >= 95)),
        Row(release, f"{release_s:.1f} s", floor=floor("≤ 5 s", release_s <= 5)),
    ]


def _calls_in_size(num: int, many: list[Run], few: list[Run]) -> Row:
    mine, other = (median([run.calls_per_minute for run in runs]) for runs in (many, few))
    what = f"commands of Slurm a minute during {num:,} samples, beside {num // 10:,}"
    return Row(what, f"{mine:.1f}", f"{other:.1f}", f"{mine / other:.2f}×", floor("≤ 6", mine <= 6))


def _calls_in_workers(num: int, nodes: list[Run], one: list[Run]) -> Row:
    """Every job costs some: sbatch, the srun of its workers, and before Slurm 23 a squeue for its end."""
    mine, other = (median([run.num_calls for run in runs]) for runs in (nodes, one))
    more = median([len(run.jobs) for run in nodes]) - 1
    what = f"commands of Slurm in all for {num:,} samples on up to three nodes (jobs: {more + 1:.0f}), beside one node"
    wanted = floor("≤ 3 more for each job", mine - other <= 3 * more)
    return Row(what, f"{mine:.0f}", f"{other:.0f}", f"{mine / other:.2f}×", wanted)


def allocations_walltime(tmp: Path, rounds: int, num: int) -> list[Row]:
    """What runs again because an allocation ends in the middle of a study."""
    task_s = LONG_S * ALL_CORES / num
    again = []
    with slurm_site(tmp / "site") as site:
        for _ in range(rounds):
            way = _one_job_after_another(site, num, task_s)
            again.append(_measure(site, fresh(tmp / "ours"), num, way))
    if min(len(run.jobs) for run in again) < 2:
        raise RuntimeError("no walltime ended in the middle of the study")
    lost = median([run.num_again / (len(run.jobs) - 1) for run in again])
    what = (
        f"tasks of {task_s:.1f} s that run again for each walltime in {num:,} samples, on {ALL_CORES} cores"
    )
    return [Row(what, f"{lost:.1f}", floor=floor(f"≤ {ALL_CORES}", lost <= ALL_CORES))]


def _one_job_after_another(site: Site, num: int, task_s: float) -> Callable[[Path], None]:
    """Jobs of all nodes and the shortest walltime, until all samples have ended."""
    size = ("--nodes", "3", "--walltime", str(WALLTIME_S))

    def act(folder: Path) -> None:
        site.merlin("run", str(SPEC), *_variables(folder, num, task_s), cwd=folder)
        while sum(1 for _ in folder.rglob("ended")) < num:
            site.merlin("workers", "submit", str(only_workspace(folder)), *size, cwd=folder)
            site.wait_until_released()

    return act


def allocations_compared(tmp: Path, rounds: int, num: int) -> list[Row]:
    """The same samples by four ways, in turn."""
    ways = {
        "ours": partial(_autoscaled, nodes_per_job=3),  # as the script by hand
        "a job per sample, as Maestro": _job_per_sample,
        "workers by a hand-written sbatch": _by_hand,
        "dask-jobqueue, adaptive": _by_dask,
    }
    found: dict[str, list[Run]] = {name: [] for name in ways}
    with slurm_site(tmp / "site") as site:
        for _ in range(rounds):
            for name, way in ways.items():
                place = fresh(tmp / name.split()[0])
                found[name].append(_measure(site, place, num, way(site, num, PEER_SLEEP_S)))
    ours = found.pop("ours")
    return [row for name, theirs in found.items() for row in _compared(name, ours, theirs, num)]


def _compared(name: str, ours: list[Run], theirs: list[Run], num: int) -> list[Row]:
    """The time to the last sample and what was allocated for it, against one of the other ways."""
    facts = (
        (f"{num} samples of {PEER_SLEEP_S} s to the last one", " s", lambda run: run.last - run.submitted),
        ("core-seconds allocated for that", "", lambda run: run.core_seconds),
    )
    rows = []
    for what, unit, fact in facts:
        mine, other = [fact(run) for run in ours], [fact(run) for run in theirs]
        times = ratio(other, mine)
        spent = f"{median(mine):.1f}{unit}", f"{median(other):.1f}{unit}"
        rows.append(Row(f"{what}, against {name}", *spent, f"{times:.2f}×", floor("≥ 1×", times >= 1)))
    return rows
