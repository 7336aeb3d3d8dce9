"""Trainers that average against synchronous data parallel, over real links: seconds to the same validation loss.

K processes of `merlin train` have a network of their own each, whose link is throttled in both directions. They train
either as K trainers that average their models in a process group, or as K ranks of one trainer with K times the batch,
whose gradients are summed in each step. All share the cores of this machine, so that what a process computes takes
longer than on a machine of its own, in both cases. It needs root, for the networks. A round is a seed.

The clock starts when the first process is ready to make its first step, and does not stop for rounds or validations.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from data_rich import SAMPLES, simulate, write_data
from loss_curves import draw
from measure import MERLIN, fresh, median
from nodes import VirtualNetwork, VirtualNode, virtual_network
from report import Row
from tournament_data_rich import NOISE, shown

from merlin.train.metrics_log import read_metrics
from merlin.train.run_directory import RunDirectory

NUM = 4  # processes
WIDTH = 256  # so many parameters that the link is what a step of synchronous training takes longest for
INTERVAL = 100  # steps between two rounds, each of which takes as long as dozens of steps
INTERVAL_END = 10  # at the end of the run
MBIT = 100
SHAPE = f"root tbf rate {MBIT}mbit burst 64kbit latency 50ms".split()
MEMORY_BYTES = 4 << 30  # of a node
PORT = 29_500
LOOKS = 40  # validations of a run, and checkpoints where it is better than before
LIMIT_S = 1200.0
POLL_S = 0.01
CONFIG = """
data: {data}
directory: {directory}
seed: {seed}
model: {{name: regressor, width: {width}, depth: 3}}
optimizer: {{lr: {lr}}}
schedule: {{name: cosine}}
training: {{steps: {steps}, batch_size: {batch}, device: cpu, threads: 1, validate_every: {every},
  log_every: 1000000, checkpoint_every: 1000000}}
loader: {{partition: equal}}
tournament: {{{tournament}}}
"""


@dataclass(frozen=True)
class Way:
    """How the processes train together."""

    steps: int
    lr: float
    batch: int  # of all ranks of a trainer
    tournament: str


# Other runs decided on both. The rate of SYNCHRONOUS is the best of 0.005, 0.01 and 0.014; that of AVERAGING, times its
# scale, lies between the best of 0.007, 0.01 and 0.014, which were the first two. The steps of SYNCHRONOUS are so many
# that its final loss is about that of AVERAGING.
AVERAGING = Way(
    5000, 0.002, 32,
    f"trainers: {NUM}, strategy: averaging, transport: process_group, interval: {INTERVAL}, "
    f"interval_end: {INTERVAL_END}, lr_scale: 4.0",
)  # fmt: skip
SYNCHRONOUS = Way(2400, 0.01, 32 * NUM, f"trainers: 1, ranks_per_trainer: {NUM}")


@dataclass(frozen=True)
class Course:
    """The validations of the first process, in seconds since it was ready, and what a process sent on average."""

    seconds: Sequence[float]
    losses: Sequence[float]
    sent_bytes: float
    num_parameters: int

    @property
    def final(self) -> float:
        return self.losses[-1]

    def reached(self, loss: float) -> float:
        """Seconds to the first validation whose loss was no more than that, which is one at the latest."""
        return next(s for s, of in zip(self.seconds, self.losses, strict=True) if of <= loss)


@contextmanager
def linked_nodes() -> Iterator[VirtualNetwork]:
    """A node for each process; what it sends and what it receives is throttled."""
    with virtual_network() as network:
        for number in range(NUM):
            node = network.add(f"node{number}", cores=os.cpu_count() or 1, memory_bytes=MEMORY_BYTES)
            node.run("tc", "qdisc", "add", "dev", "eth0", *SHAPE)
            subprocess.run(["tc", "qdisc", "add", "dev", node._link, *SHAPE], check=True)
        yield network


def sent_by(node: VirtualNode) -> int:
    """Bytes that a node has sent so far, which is what the other end of its link has received."""
    return int(Path(f"/sys/class/net/{node._link}/statistics/rx_bytes").read_text())


class Watch:
    """Reads the metrics of a run while they are written, and says when each line came."""

    def __init__(self, path: Path, nodes: Sequence[VirtualNode]) -> None:
        self._path, self._nodes = path, nodes
        self._begin = 0.0
        self._sent_before: list[int] = []
        self._size = 0
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def look(self) -> None:
        if not self._path.exists():  # it is made when everything is ready for the first step
            return
        now = time.perf_counter()
        if not self._sent_before:
            self._begin, self._sent_before = now, [sent_by(node) for node in self._nodes]
        size = self._path.stat().st_size
        if size == self._size:
            return
        self._size = size
        found = [line["values"]["loss"] for line in read_metrics(self._path) if line["kind"] == "validation"]
        self.seconds += [now - self._begin] * (len(found) - len(self.seconds))
        self.losses = found

    def sent_bytes(self) -> float:
        """The mean of all processes, since the first one was ready."""
        pairs = zip(self._nodes, self._sent_before, strict=True)
        return sum(sent_by(node) - before for node, before in pairs) / len(self._nodes)


def train(folder: Path, data: Path, seed: int, way: Way) -> Course:
    """A run of all processes, in networks that are gone afterwards."""
    config, directory = folder / "run.yaml", folder / "run"
    config.write_text(
        CONFIG.format(
            data=data, directory=directory, seed=seed, width=WIDTH, lr=way.lr, steps=way.steps, batch=way.batch,
            every=max(1, way.steps // LOOKS), tournament=way.tournament,
        )
    )  # fmt: skip
    with linked_nodes() as network:
        nodes = list(network.nodes.values())
        watch = Watch(directory / "trainers" / "0" / "metrics.jsonl", nodes)
        children = [_start(node, rank, nodes[0].address, config) for rank, node in enumerate(nodes)]
        try:
            _wait(children, watch, folder)
        finally:
            for node, child in zip(nodes, children, strict=True):
                node.end_processes(())
                child.wait()
        return Course(
            watch.seconds, watch.losses, watch.sent_bytes(), RunDirectory(directory).facts().num_parameters
        )


def _start(node: VirtualNode, rank: int, address: str, config: Path) -> subprocess.Popen[bytes]:
    """One of the processes, as torchrun would start it."""
    world = {"RANK": rank, "WORLD_SIZE": NUM, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    world |= {"MASTER_ADDR": address, "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1}
    env = {**os.environ, **{name: str(value) for name, value in world.items()}}
    with open(config.with_name(f"{rank}.log"), "wb") as log:
        words = node.command(MERLIN, "train", str(config))
        return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait(children: Sequence[subprocess.Popen[bytes]], watch: Watch, folder: Path) -> None:
    """Until all have ended. Raises RuntimeError if one of them fails, or they take too long."""
    end = time.monotonic() + LIMIT_S
    alive = True
    while alive:
        codes = [child.poll() for child in children]
        alive = None in codes
        if any(codes) or time.monotonic() > end:  # the reason may be told by one process alone
            logs = [(folder / f"{rank}.log").read_text(errors="replace")[-2000:] for rank in range(NUM)]
            raise RuntimeError(f"the processes ended with {codes}\n" + "\n".join(filter(None, logs)))
        watch.look()
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Race:
    """Both ways with one seed."""

    averaging: Course
    synchronous: Course

    @property
    def target(self) -> float:
        """The loss that both reach: the worse of their last ones."""
        return max(self.averaging.final, self.synchronous.final)

    @property
    def seconds(self) -> tuple[float, float]:
        return self.averaging.reached(self.target), self.synchronous.reached(self.target)

    @staticmethod
    def run(folder: Path, data: Path, seed: int, scale: float) -> Race:
        """`scale` shortens the runs, for trying the harness."""
        courses = []
        for way in (AVERAGING, SYNCHRONOUS):
            shorter = replace(way, steps=max(LOOKS, round(way.steps * scale)))
            courses.append(train(fresh(folder / "run"), data, seed, shorter))
            print(shorter, f"{courses[-1].final:.3g} after {courses[-1].seconds[-1]:.1f} s", flush=True)
        return Race(*courses)


def link(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Seconds to the same loss, and to the end, at as many seeds as there are rounds."""
    if sys.platform != "linux" or os.geteuid():
        raise RuntimeError("this row needs root on Linux, for networks of its own")
    if missing := [name for name in ("ip", "tc", "unshare", "nsenter") if shutil.which(name) is None]:
        raise RuntimeError(f"this row needs {', '.join(missing)}")
    inputs, scalars, _ = simulate(num)
    data = write_data(tmp, inputs, scalars, NOISE)
    races = [Race.run(tmp, data, seed, num / SAMPLES) for seed in range(rounds)]
    lines = {"averaging": races[0].averaging, "synchronous data parallel": races[0].synchronous}
    title = f"{NUM} processes, links of {MBIT} Mbit/s"
    draw("tournament-link", {title: lines}, "validation loss", (1e-5, 1e-2), time="seconds of the clock")
    ours, other = [race.averaging for race in races], [race.synchronous for race in races]
    return [_to_the_same_loss(races, num), _to_the_end(ours, other), _sent(ours, other)]


def _to_the_same_loss(races: Sequence[Race], num: int) -> Row:
    seconds = [race.seconds for race in races]
    what = (
        f"{NUM} trainers that average their models of {races[0].averaging.num_parameters:,} parameters every "
        f"{INTERVAL} steps, against synchronous data parallel with {NUM} ranks: seconds to the worse of both final "
        f"losses ({median([race.target for race in races]):.2e}), {num:,} noisy samples; "
        f"processes in networks of their own with {MBIT} Mbit/s"
    )
    values = [f"{median(times):.1f} s" for times in zip(*seconds, strict=True)]
    return Row(what, *values, shown([b / a for a, b in seconds]), "≥ 2×")


def _to_the_end(ours: Sequence[Course], other: Sequence[Course]) -> Row:
    what = f"the same runs to their ends, {AVERAGING.steps:,} and {SYNCHRONOUS.steps:,} steps, and their final losses"
    values = [
        f"{median([of.seconds[-1] for of in way]):.1f} s, {median([of.final for of in way]):.2e}"
        for way in (ours, other)
    ]
    ratios = [b.seconds[-1] / a.seconds[-1] for a, b in zip(ours, other, strict=True)]
    return Row(what, *values, shown(ratios), "reported")


def _sent(ours: Sequence[Course], other: Sequence[Course]) -> Row:
    values = [f"{median([of.sent_bytes for of in way]) / 1e6:,.0f} MB" for way in (ours, other)]
    ratios = [b.sent_bytes / a.sent_bytes for a, b in zip(ours, other, strict=True)]
    return Row("the same runs, what a process sent over its link", *values, shown(ratios), "reported")
