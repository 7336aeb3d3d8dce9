"""Tasks of several cores beside tasks of one, and GPUs as devices with an index: nothing is used twice at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest
from commands import run_merlin
from live_processes import processes_inside
from servers import RedisServer
from waiting import wait_until

# the system's uptime is the same clock for all processes; the end is written before the task ends
SCRIPT = r"""
        read now rest < /proc/uptime
        cores=$(sed -n 's/^Cpus_allowed_list:\t*//p' /proc/self/status)
        sleep 0.05
        read then rest < /proc/uptime
        echo "$now $then $cores ${CUDA_VISIBLE_DEVICES:-none}" > $(SPECROOT)/seen/{name}.$(X)
"""
STEPS = {
    "small": "",
    "own": "cores per task: 1",
    "wide": "procs: 2",
    "half": "gpus: 0.5",
    "gpu": "gpus: 1",
    "both": "gpus: 2",
}
NUM = 5


@dataclass(frozen=True)
class Task:
    step: str
    begin: float
    end: float
    cores: frozenset[int]
    gpus: frozenset[str]


def spec(steps: dict[str, str]) -> str:
    head = "description: {name: fit, description: cores and GPUs}\nstudy:\n"
    for name, needs in steps.items():
        text = SCRIPT.replace("{name}", name)
        head += f"  - name: {name}\n    run:\n      {needs or 'max_retries: 1'}\n      cmd: |{text}"
    head += "merlin:\n  resources: {overlap: true, workers: {one: {args: -c 2}}}\n"
    return head + "  samples: {column_labels: [X], file: samples.csv}\n"


def parsed(text: str) -> frozenset[int]:
    """Cores as the system lists them: "0-2,5"."""
    ends = (part.partition("-") for part in text.split(","))
    return frozenset(core for a, _, b in ends for core in range(int(a), int(b or a) + 1))


def tasks(folder: Path) -> Iterator[Task]:
    for path in sorted((folder / "seen").iterdir()):
        begin, end, cores, gpus = path.read_text().split()
        devices = frozenset() if gpus == "none" else frozenset(gpus.split(","))
        yield Task(path.stem, float(begin), float(end), parsed(cores), devices)


def check_nothing_overlaps(found: list[Task]) -> None:
    shares = {"half": 0.5, "gpu": 1.0, "both": 1.0}
    ours = frozenset(os.sched_getaffinity(0))
    for a, b in combinations(found, 2):
        if a.begin < b.end and b.begin < a.end:
            if a.cores < ours and b.cores < ours:
                assert not a.cores & b.cores, (a, b)
            if {a.step, b.step} <= shares.keys() and a.gpus & b.gpus:
                assert shares[a.step] + shares[b.step] <= 1, (a, b)


def prepare(folder: Path, steps: dict[str, str]) -> Path:
    (folder / "seen").mkdir()
    (folder / "samples.csv").write_text("".join(f"{k}\n" for k in range(NUM)))
    path = folder / "fit.yaml"
    path.write_text(spec(steps))
    return path


def environment(folder: Path, devices: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}
    return {**inherited, "HOME": str(folder), "CUDA_VISIBLE_DEVICES": devices}


def test_tasks_of_a_local_run_have_their_cores_and_devices_for_themselves(tmp_path: Path) -> None:
    path = prepare(tmp_path, STEPS)
    done = run_merlin("run", "--local", path.name, cwd=tmp_path, env=environment(tmp_path, "3,5"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = list(tasks(tmp_path))
    assert len(found) == NUM * len(STEPS)
    for task in found:
        expected = {"half": 1, "gpu": 1, "both": 2}.get(task.step)
        assert task.gpus <= {"3", "5"}
        assert expected is None or len(task.gpus) == expected, task
        if task.cores != os.sched_getaffinity(0):  # nobody else on this machine had locked the cores
            assert len(task.cores) == {"own": 1, "wide": 2}[task.step], task
    check_nothing_overlaps(found)


def test_gpus_that_are_not_here_are_an_error_before_anything_runs(tmp_path: Path) -> None:
    path = prepare(tmp_path, {"small": "", "both": "gpus: 2"})
    done = run_merlin("run", "--local", path.name, cwd=tmp_path, env=environment(tmp_path, "0"))
    assert done.returncode != 0
    assert "step 'both' needs 2 GPUs for each task, and this machine has only 0" in done.stdout + done.stderr
    assert "resume with" not in done.stderr
    assert not list(tasks(tmp_path))


FUNCTION = """
import os
import pathlib

def run(inputs, context):
    with pathlib.Path(__file__).with_name("seen").joinpath(str(os.getpid())).open("a") as file:
        file.write(os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
    return {"y": inputs["X"]}
"""


def test_a_process_runs_functions_on_the_same_device_only(tmp_path: Path) -> None:
    path = prepare(tmp_path, {})
    run = 'run: {function: "devices:run", gpus: 1}'
    path.write_text(spec({}).replace("study:\n", f"study:\n  - {{name: learn, {run}}}\n"))
    (tmp_path / "samples.csv").write_text("".join(f"{k}\n" for k in range(40)))
    (tmp_path / "devices.py").write_text(FUNCTION)
    done = run_merlin(
        "run", "--local", "--workers", "2", path.name, cwd=tmp_path, env=environment(tmp_path, "3,5")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [set(file.read_text().split()) for file in (tmp_path / "seen").iterdir()]
    assert all(devices in ({"3"}, {"5"}) for devices in seen), seen


@pytest.fixture
def environments(tmp_path: Path, any_redis: RedisServer) -> Iterator[list[dict[str, str]]]:
    """Of two workers that have different devices of this machine."""
    more = {"MERLIN_BROKER_URL": any_redis.url, "MERLIN_LEASE_S": "4"}
    found = [environment(tmp_path, devices) | more for devices in ("3", "5,6")]
    yield found
    run_merlin("stop-workers", "--now", "--wait", "100", cwd=tmp_path, env=found[0])
    alive = lambda: [line for line in processes_inside(tmp_path) if "redis-server" not in line]  # noqa: E731
    wait_until(lambda: not alive(), alive)


def test_two_workers_of_a_machine_give_their_tasks_different_cores_and_devices(
    tmp_path: Path, environments: list[dict[str, str]]
) -> None:
    path = prepare(tmp_path, STEPS)

    def merlin(*words: str, env: dict[str, str]) -> str:
        done = run_merlin(*words, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    workspace = json.loads(merlin("run", path.name, "--json", env=environments[0]))["workspace"]
    other = path.with_name("two.yaml")
    other.write_text(path.read_text().replace("one:", "two:"))
    for file, env in zip((path, other), environments, strict=True):
        merlin("run-workers", file.name, env=env)
    merlin("monitor", workspace, env=environments[0])
    found = list(tasks(tmp_path))
    assert len(found) == NUM * len(STEPS)
    for task in found:
        assert task.gpus <= {"3"} or task.gpus <= {"5", "6"}
        assert task.step != "both" or task.gpus == {"5", "6"}
    check_nothing_overlaps(found)
