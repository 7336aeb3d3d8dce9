"""What one owner, on one Redis, can do: thousands of simulated workers, and many studies at once.

The owner is the product's, in a process of its own; so are Redis and its scripts. Workers only answer.

python many_workers.py own [--profile FILE]    the owner alone, for whoever wants to look at it
python many_workers.py try SLOTS TASK_S WARM_UP_S WINDOW_S [--told-s S] [--studies N] [--alone]    one measurement
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TASK_S = 0.2
LEARN_S = {10: 20.0, 100: 20.0, 1_000: 30.0, 10_000: 60.0}  # slots -> warm-up
WINDOW_S = 30.0
GOAL = 0.95


@dataclass(frozen=True)
class Found:
    """One measurement: its window alone, without the warm-up."""

    slots: int
    studies: int
    busy: float  # share of the slots' time
    results_per_s: float
    tasks_per_chunk: float
    warm_after_s: float  # from the first message on; when the slots were busy as they should be, or -1
    owner_core: float  # share of a core
    owner_mb: float  # its peak
    redis_core: float
    redis_mb: float
    redis_commands_per_s: float  # without those by which workers look for messages
    crowd_core: float  # of the simulation; near 1 it is what limits

    @property
    def owner_ms_per_result(self) -> float:
        return 1e3 * self.owner_core / self.results_per_s if self.results_per_s else 0.0

    @property
    def redis_ms_per_result(self) -> float:
        return 1e3 * self.redis_core / self.results_per_s if self.results_per_s else 0.0


def rows(tmp: Path, rounds: int, num: int) -> list[Any]:
    """`num`: the most slots."""
    from report import Row

    all_found = [
        measure(tmp / f"slots-{slots}", slots, TASK_S, LEARN_S[slots], WINDOW_S)
        for slots in LEARN_S
        if slots <= num
    ]
    if num >= max(LEARN_S):
        draw(all_found)
    out = []
    for found in all_found:
        what = f"one owner, {found.slots:,} simulated workers, tasks of {TASK_S:g} s: share of their time in work"
        ours = f"{found.busy:.1%}, {found.results_per_s:.0f} results/s of {found.tasks_per_chunk:.0f} tasks"
        owner = f"owner {found.owner_core:.0%} of a core, Redis {found.redis_core:.0%}"
        out.append(Row(what, ours, owner, "", f"≥ {GOAL:.0%}", f"{found.owner_mb:.0f} MB"))
    for alone in (False, True):
        most = measure(tmp / f"most-{alone}", min(1_000, num), 0.0, 8.0, 15.0, told_s=3.0, alone=alone)
        how = ", each command of which travels by itself" if alone else ""
        what = f"the most results of one owner, from workers that answer at once{how}"
        ours = f"{most.results_per_s:.0f}/s, {most.owner_ms_per_result:.2f} ms of its CPU each"
        num_commands = most.redis_commands_per_s / most.results_per_s
        redis = f"Redis {most.redis_ms_per_result:.2f} ms and {num_commands:.0f} commands each"
        other = f"{redis}, the simulation {most.crowd_core:.0%} of a core"
        out.append(Row(what, ours, other, "", "reported", f"{most.owner_mb:.0f} MB"))
    for studies in (1, 10, 100):
        idle = measure(tmp / f"idle-{studies}", 32, 1e4, 15.0, 10.0, studies=studies)
        open_studies = "1 open study" if studies == 1 else f"{studies} open studies"
        what = f"{open_studies} of which nothing ends, owned by one worker"
        ours = f"{idle.redis_commands_per_s:.0f} commands/s, {idle.owner_core:.1%} of a core"
        other = f"Redis {idle.redis_core:.1%}, {idle.redis_mb:.1f} MB"
        out.append(Row(what, ours, other, "", "reported", f"{idle.owner_mb:.0f} MB"))
    return out


def measure(
    folder: Path,
    slots: int,
    task_s: float,
    warm_up_s: float,
    window_s: float,
    *,
    told_s: float = 0.0,
    studies: int = 1,
    alone: bool = False,
    profile: Path | None = None,
) -> Found:
    """Let workers work for a while, and look at everybody at the start and at the end of a window."""
    from deployment import deployment, wait_for
    from measure import fresh, peak_bytes

    folder = fresh(folder)
    with deployment(folder) as made:
        _publish(made, studies, _num_samples(slots, task_s, warm_up_s + window_s, studies))
        log = folder / "crowd.log"
        log.touch()
        command = [str(HERE / "simulated_workers.py"), str(slots), str(task_s), str(log)]
        command += ["--told-s", str(told_s), *(["--alone"] if alone else [])]
        with (
            _python(made, *command) as crowd,
            _python(made, __file__, "own", *(["--profile", str(profile)] if profile else [])) as owner,
            made.client() as client,
        ):
            pids = {"crowd": crowd.pid, "owner": owner.pid, "redis": made.server.pid}
            wait_for(lambda: log.stat().st_size > 0, 60, "the workers")
            time.sleep(warm_up_s)
            before = _look(client, pids)
            time.sleep(window_s)
            after = _look(client, pids)
            peak_mb = peak_bytes(owner.pid) / 1e6
            for process in (crowd, owner):
                if process.poll() is not None:
                    raise RuntimeError(f"one ended: {process.args}; see {folder}")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    window = [line for line in lines if before["at"] < line["at"] <= after["at"]]
    took = sum(line["took_s"] for line in window)
    results = sum(line["results"] for line in window)
    passed = after["at"] - before["at"]
    core = {who: (after[who] - before[who]) / passed for who in pids}
    return Found(
        slots=slots,
        studies=studies,
        busy=sum(line["busy"] * line["took_s"] for line in window) / took,
        results_per_s=results / took,
        tasks_per_chunk=sum(line["tasks"] for line in window) / max(1, results),
        warm_after_s=_warm_after_s(lines),
        owner_core=core["owner"],
        owner_mb=peak_mb,
        redis_core=core["redis"],
        redis_mb=after["used_memory"] / 1e6,
        redis_commands_per_s=(after["commands"] - before["commands"]) / passed,
        crowd_core=core["crowd"],
    )


def _warm_after_s(lines: list[dict[str, Any]]) -> float:
    """The first five seconds in a row that reach the goal, on average."""
    first = next((line["at"] for line in lines if line["running"]), 0.0)
    for k in range(len(lines) - 4):
        if sum(line["busy"] for line in lines[k : k + 5]) / 5 >= GOAL:
            return float(lines[k]["at"] - first)
    return -1.0


def _num_samples(slots: int, task_s: float, seconds: float, studies: int) -> int:
    """Of each study: more than workers can run meanwhile, and so many that the end, where chunks shrink, is far."""
    if not task_s:
        return 1_000_000
    return int(10_000 + 2 * slots * (seconds / studies + 60.0) / task_s)


def _publish(made: Any, studies: int, num_samples: int) -> None:
    """As `merlin run`, many times in one process."""
    code = (
        "import sys; from pathlib import Path; from merlin.config.load import require_config; "
        "from merlin.execution.distributed.open_study import open_study; from merlin.spec.load import load_spec; "
        "from merlin.workspace.options import StudyOptions; "
        "from merlin.workspace.prepare import prepare_study; config = require_config()\n"
        "for k in range(int(sys.argv[2])):\n"
        "  variables = {'OUTPUT_PATH': f'studies/{k}', 'N_SAMPLES': sys.argv[3]}\n"
        "  spec = load_spec(Path(sys.argv[1]), variables=variables)\n"
        "  open_study(prepare_study(spec, StudyOptions()), config)\n"
    )
    words = [str(HERE / "specs" / "many_workers.yaml"), str(studies), str(num_samples)]
    subprocess.run([sys.executable, "-c", code, *words], cwd=made.folder, env=made.env, check=True)


@contextmanager
def _python(made: Any, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the deployment, interrupted at the end."""
    with (made.folder / "processes.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=made.folder, env=made.env, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _look(client: Any, pids: dict[str, int]) -> dict[str, float]:
    """CPU seconds of the processes so far, and what Redis says."""
    from measure import cpu_s

    info, calls = client.info("memory"), client.info("commandstats")
    num = sum(v["calls"] for name, v in calls.items() if name not in ("cmdstat_rpop", "cmdstat_info"))
    found = {who: cpu_s(pid) for who, pid in pids.items()}
    return found | {"at": time.monotonic(), "used_memory": info["used_memory"], "commands": num}


# ------------------------------------------------------------------------- the owner


class _NothingRuns:
    def void(self, study_id: str) -> None:
        pass

    def forget(self, study_id: str) -> bool:
        return True


def own(profile: Path | None) -> None:
    """What a worker does beside running chunks: own every study that has no owner."""
    import logging

    from merlin.config.load import require_config
    from merlin.execution.distributed.open_study import make_tools
    from merlin.execution.distributed.owners import Owners
    from merlin.execution.distributed.study import Studies

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    owners = Owners(make_tools(require_config()), Studies(), _NothingRuns())
    if profile:
        _profiled(owners, profile)
    owners.start()
    over.wait()
    owners.stop()
    if profile:
        _dumped.wait(30)


_dumped = threading.Event()


def _profiled(owners: Any, path: Path) -> None:
    """Let the first thread that owns a study be profiled, by CPU time."""
    import cProfile

    serve = owners._serve

    def wrapped(*args: Any) -> None:
        profiler = cProfile.Profile(time.thread_time)
        try:
            profiler.runcall(serve, *args)
        finally:
            profiler.dump_stats(path)
            _dumped.set()

    owners._serve = wrapped


# -------------------------------------------------------------------------- the plot


def draw(found: list[Found]) -> None:
    """Share of time in work, and results per second, against the number of workers."""
    from pictures import pyplot, save

    slots = [f.slots for f in found]
    with pyplot() as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
        left.plot(slots, [100 * f.busy for f in found], "o-", color="tab:blue")
        left.axhline(100 * GOAL, color="0.6", linestyle=":", linewidth=1)
        left.set(xscale="log", xlabel="slots of simulated workers", ylabel="time in work (%)", ylim=(0, 101))
        right.plot(slots, [f.results_per_s for f in found], "o-", color="tab:blue", label="results/s")
        right.set(
            xscale="log", yscale="log", xlabel="slots of simulated workers", ylabel="results per second"
        )
        cores = right.twinx()
        cores.plot(slots, [100 * f.owner_core for f in found], "s--", color="tab:orange", label="owner")
        cores.plot(slots, [100 * f.redis_core for f in found], "^--", color="tab:green", label="Redis")
        cores.set(ylabel="of a core (%)", ylim=(0, 105))
        cores.spines["right"].set_visible(True)
        lines = [*right.get_lines(), *cores.get_lines()]
        right.legend(lines, [line.get_label() for line in lines], frameon=False, loc="upper left")
        save(figure, "many-workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    owning = commands.add_parser("own")
    owning.add_argument("--profile", type=Path)
    trying = commands.add_parser("try")
    trying.add_argument("slots", type=int)
    for name in ("task_s", "warm_up_s", "window_s"):
        trying.add_argument(name, type=float)
    trying.add_argument("--told-s", type=float, default=0.0)
    trying.add_argument("--studies", type=int, default=1)
    trying.add_argument("--alone", action="store_true")
    trying.add_argument("--profile", type=Path)
    trying.add_argument("--folder", type=Path, default=Path("/tmp/merlin-many-workers"))
    args = parser.parse_args()
    if args.command == "own":
        own(args.profile)
        return
    found = measure(
        args.folder, args.slots, args.task_s, args.warm_up_s, args.window_s,
        told_s=args.told_s, studies=args.studies, alone=args.alone, profile=args.profile,
    )  # fmt: skip
    print(
        json.dumps(
            asdict(found)
            | {
                "owner_ms_per_result": found.owner_ms_per_result,
                "redis_ms_per_result": found.redis_ms_per_result,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
