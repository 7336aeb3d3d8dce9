"""Epochs of trainers whose shares fit into the memory of their nodes, against one trainer on all samples, which do not.

Each trainer runs alone in control groups (version 1, as root) that limit its memory, page cache included, and how fast
it reads from the disk. The K trainers are modelled as side by side: an epoch takes as long as that of the slowest.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from measure import MERLIN, fresh, median, ratio
from reading import make_data_set
from report import Row

from merlin.train.metrics_log import read_metrics

TRAINERS = 4
EPOCHS = 4  # the first of which reads from the disk in any case
BATCH = 64
READ_BYTES_PER_S = 200 << 20
SPARE = 1.3  # of a share, beside what the process itself takes
GROUPS = Path("/sys/fs/cgroup")
CONFIG = """
data: {data}
directory: {directory}
fields: {{inputs: [image], images: []}}
model: {{name: regressor, width: 32, depth: 2, encoder: mlp}}
training: {{epochs: {epochs}, batch_size: {batch}, device: cpu, threads: 1, log_every: {log_every},
  validate_every: 1000000, checkpoint_every: 1000000}}
tournament: {{trainers: {trainers}, strategy: none}}
"""


@dataclass(frozen=True)
class Limits:
    memory_bytes: int | None
    read_bytes_per_s: int


class Group:
    """Control groups for a process."""

    def __init__(self, limits: Limits, disk: str) -> None:
        name = f"merlin_bench_{os.getpid()}"
        self.memory, self.disk = GROUPS / "memory" / name, GROUPS / "blkio" / name
        for folder in (self.memory, self.disk):
            folder.mkdir()
        if limits.memory_bytes is not None:
            (self.memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
        throttle = self.disk / "blkio.throttle.read_bps_device"
        throttle.write_text(f"{disk} {limits.read_bytes_per_s}")

    def enter(self) -> None:
        """In the process, before its program begins."""
        for folder in (self.memory, self.disk):
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def own_bytes(self) -> int:
        """What is no page cache."""
        stat = dict(line.split() for line in (self.memory / "memory.stat").read_text().splitlines())
        return int(stat["rss"])

    def close(self) -> None:
        (self.memory / "memory.force_empty").write_text("0")
        for folder in (self.memory, self.disk):
            folder.rmdir()


@contextmanager
def limited(limits: Limits, data: Path) -> Iterator[Group]:
    """A group; nothing of the data set is in memory when it begins."""
    for path in data.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    device = os.stat(data).st_dev
    group = Group(limits, f"{os.major(device)}:{os.minor(device)}")
    try:
        yield group
    finally:
        group.close()


def epoch_s(
    folder: Path, data: Path, trainers: int, index: int, num: int, limits: Limits
) -> tuple[float, int]:
    """The median of a trainer's epochs after the first, and the bytes of its memory that are no page cache."""
    directory = folder / f"run_{trainers}"
    config = folder / f"{trainers}.yaml"
    steps = max(1, num // trainers // BATCH)
    config.write_text(
        CONFIG.format(
            data=data, directory=directory, epochs=EPOCHS, batch=BATCH, log_every=steps, trainers=trainers
        )
    )
    own = 0
    with limited(limits, data) as group, open(folder / "train.log", "wb") as log:
        words = [MERLIN, "train", str(config), "--trainer", str(index)]
        child = subprocess.Popen(words, stdout=log, stderr=log, preexec_fn=group.enter)
        while child.poll() is None:
            own = max(own, group.own_bytes())
            time.sleep(0.05)
    if child.returncode:
        raise RuntimeError((folder / "train.log").read_text()[-2000:])
    lines = read_metrics(directory / "trainers" / str(index) / "metrics.jsonl")
    ends = [float(line["time_s"]) for line in lines if line["kind"] == "train"]
    return median([b - a for a, b in pairwise(ends)]), own


def shares_in_memory(tmp: Path, rounds: int, num: int) -> list[Row]:
    """The ratio of the epochs, of as many runs as there are rounds."""
    if os.geteuid() or not (GROUPS / "blkio").is_dir():
        raise RuntimeError("this row needs root and control groups of version 1")
    data = make_data_set(tmp / "study", num)
    share = sum(path.stat().st_size for path in data.glob("*.h5")) // TRAINERS
    _, own = epoch_s(fresh(tmp / "look"), data, TRAINERS, 0, num, Limits(None, READ_BYTES_PER_S))
    limits = Limits(own + int(SPARE * share), READ_BYTES_PER_S)
    alone, together = [], []
    for number in range(rounds):
        folder = fresh(tmp / f"round_{number}")
        alone.append(epoch_s(folder, data, 1, 0, num, limits)[0])
        together.append(max(epoch_s(folder, data, TRAINERS, k, num, limits)[0] for k in range(TRAINERS)))
    what = (
        f"an epoch of {num:,} images of 64 KiB: {TRAINERS} trainers whose shares fit in memory "
        f"({limits.memory_bytes >> 20} MiB each, {own >> 20} of them their own), against one with all; "
        f"the disk reads {READ_BYTES_PER_S >> 20} MiB/s"
    )
    times = f"{median(together):.2f} s", f"{median(alone):.2f} s"
    return [Row(what, *times, f"{ratio(alone, together):.2f}×", "≥ 4.36×")]
