"""Tournaments: quality of K trainers with and without rounds against one trainer, what rounds cost, and kill -9.

Quality: the 15 scalars of the ICF study from its five inputs, by the regressor. One trainer has all samples; K
trainers have a K-th of them each and make a K-th of its steps each, so that the numbers of sample visits are equal.
The trainers of a run live in threads of this process, one of which works at a time: what each computes takes as long
as on a machine of its own. A parallel run is modelled as its slowest trainer's seconds of computing, exchanging and
judging.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from imported_data import import_arrays
from measure import MERLIN, fresh, median, ratio
from msgspec.structs import replace
from open_loops import opened_loop
from pictures import pyplot, save
from report import Row
from training import make_scalars

from merlin.base.processes import children
from merlin.train.config_file import parse_config
from merlin.train.metrics_log import read_metrics
from merlin.train.prepare import check
from merlin.train.run_directory import RunDirectory
from merlin.train.tournament.presence import announce, presence_directory

NUMBERS = (2, 4, 8)
SEEDS = (0, 1, 2)
STEPS = 6000  # of the single trainer
INTERVAL = 25
BEYOND = 4  # a tournament of this multiple of equal visits tells when it is as good as the single trainer
CONFIG = """
data: {data}
directory: {directory}
seed: {seed}
model: {{name: regressor, width: 64, depth: 3}}
optimizer: {{lr: 0.01}}
schedule: {{name: cosine}}
training: {{steps: {steps}, batch_size: 16, device: cpu, threads: 1, validate_every: {every}, checkpoint_every: 100000}}
loader: {{partition: equal}}
tournament: {{trainers: {trainers}, strategy: {strategy}, interval: {interval}, wait: 100000}}
"""
SPLITS = "splits: {train: 0.25, validation: 0.5, test: 0.25}"  # few to learn from, many to tell how well
BOUNDS = {
    "mode_4_3": 0.04, "mode_2_1": 0.08, "mode_1_0": 0.10, "trans_u": None, "trans_v": None,
}  # fmt: skip


def icf_inputs(num: int) -> dict[str, Any]:
    """Inputs of the ICF study, drawn from their bounds."""
    rng = np.random.default_rng(2026)
    return {
        name: rng.uniform(-reach, reach, num) if reach else rng.uniform(0, 1, num)
        for name, reach in BOUNDS.items()
    }


def icf_scalars(folder: Path, num: int) -> Path:
    """A data set of the ICF study's inputs and scalars, without its images."""
    import icf
    import icf_diagnostics
    import icf_implosion

    inputs = icf_inputs(num)
    parts: list[dict[str, Any]] = []
    for lo in range(0, num, icf.BLOCK):
        some = {name: values[lo : lo + icf.BLOCK] for name, values in inputs.items()}
        parts.append(icf_diagnostics.scalars(icf_implosion.implode(icf.design(some)))[0])
    scalars = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    fields = ", ".join(f"{name}: {{kind: scalar}}" for name in scalars)
    text = f"inputs: [{', '.join(inputs)}]\nfields: {{{fields}}}\n{SPLITS}\n"
    return import_arrays(folder, text, {**inputs, **scalars})


@dataclass
class Course:
    """One trainer's run: the validation loss, and its seconds of work up to each step."""

    losses: list[tuple[int, float]]
    step_s: float
    rounds: list[tuple[int, float]] = field(default_factory=list)  # step, seconds of exchange and evaluation

    def best(self, step: int) -> float:
        return min((loss for at, loss in self.losses if at <= step), default=math.inf)

    def seconds(self, step: int) -> float:
        return step * self.step_s + sum(cost for at, cost in self.rounds if at <= step)


class Turns:
    """A transport whose trainer lets another one work while it waits."""

    def __init__(self, transport: Any, turn: threading.Lock) -> None:
        self._transport, self._turn = transport, turn
        self.waited_s: dict[int, float] = {}  # by round

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def take(self, number: int, *args: Any) -> Iterator[None]:
        waiting = self._transport.take(number, *args)
        while True:
            try:
                next(waiting)
            except StopIteration as done:
                return done.value
            self._turn.release()
            yield
            begin = time.monotonic()
            self._turn.acquire()
            self.waited_s[number] = self.waited_s.get(number, 0.0) + time.monotonic() - begin


def run_trainers(prepared: Any) -> list[Course]:
    """Train all trainers of a run in turns, each to its end."""
    begun, turn = replace(prepared, run=prepared.begin()), threading.Lock()
    announce(presence_directory(begun.run.tournament), range(prepared.config.tournament.trainers))
    courses: dict[int, Course] = {}

    def work(index: int) -> None:
        with turn:
            courses[index] = _train(begun, index, turn)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(prepared.config.tournament.trainers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [courses[k] for k in sorted(courses)]


def _train(begun: Any, index: int, turn: threading.Lock) -> Course:
    cpu_s = 0.0
    with opened_loop(begun, index) as loop:
        turns = None
        if loop.tournament is not None:
            turns = Turns(loop.tournament._transport, turn)
            loop.tournament._transport = turns
        train = loop.trainer.train_steps

        def timed(num: int, stop: Any) -> int:
            nonlocal cpu_s
            begin = time.thread_time()
            done = train(num, stop)
            cpu_s += time.thread_time() - begin
            return done

        loop.trainer.train_steps = timed
        loop.run()
        steps = loop.trainer.step
    lines = read_metrics(begun.run.trainer(index).path / "metrics.jsonl")
    losses = [(line["step"], line["values"]["loss"]) for line in lines if line["kind"] == "validation"]
    waited = {} if turns is None else turns.waited_s
    rounds = [
        (
            line["step"],
            line["values"]["exchange_s"] - waited.get(line["round"], 0.0) + line["values"]["evaluation_s"],
        )
        for line in lines
        if line["kind"] == "round"
    ]
    return Course(losses, cpu_s / steps, rounds)


@dataclass
class Quality:
    """What one number of trainers reached: a value for each seed."""

    num: int
    tournament: list[float] = field(default_factory=list)  # at equal visits
    independent: list[float] = field(default_factory=list)
    speed_up: float = math.nan  # of the first seed, to the single trainer's loss; nan if it was not reached


class Runs:
    """Runs of one data set, in folders of their own."""

    def __init__(self, folder: Path, data: Path, interval: int) -> None:
        self.folder, self.data, self.interval = folder, data, interval

    def train(self, seed: int, num: int, steps: int, strategy: str = "none") -> list[Course]:
        directory = self.folder / f"{strategy}-{num}-{steps}-{seed}"
        text = CONFIG.format(
            data=self.data, directory=directory, seed=seed, every=25, interval=self.interval, trainers=num,
            steps=steps, strategy=strategy,
        )  # fmt: skip
        return run_trainers(check(parse_config(text, "bench.yaml")))

    def measure(
        self, steps: int, numbers: Sequence[int], seeds: Sequence[int]
    ) -> tuple[list[float], list[Quality]]:
        """Best validation losses of the single trainer, one for each seed, and of K trainers."""
        single: list[float] = []
        found = [Quality(num) for num in numbers]
        for seed in seeds:
            (alone,) = self.train(seed, 1, steps)
            single.append(alone.best(steps))
            for quality in found:
                visits = steps // quality.num
                apart = self.train(seed, quality.num, visits)
                met = self.train(seed, quality.num, visits, "random_pairwise")
                quality.independent.append(min(course.best(visits) for course in apart))
                quality.tournament.append(min(course.best(visits) for course in met))
                print(seed, single[-1], quality, flush=True)
                if seed == seeds[0]:
                    quality.speed_up = self.speed_up(alone, steps, quality.num)
        return single, found

    def speed_up(self, alone: Course, steps: int, num: int) -> float:
        """Of a tournament that is long enough to come where the single trainer came, on a machine for each."""
        goal = alone.best(steps)
        long = self.train(0, num, min(steps, BEYOND * steps // num), "random_pairwise")
        reached = [step for step, _ in long[0].losses if min(course.best(step) for course in long) <= goal]
        if not reached:
            return math.nan
        needed = next(step for step, loss in alone.losses if loss <= goal)
        return alone.seconds(needed) / max(course.seconds(reached[0]) for course in long)


def draw(single: Sequence[float], found: Sequence[Quality]) -> None:
    """The losses as a picture, over the number of trainers."""
    with pyplot() as plt:
        figure, axes = plt.subplots(figsize=(4.6, 2.9), layout="constrained")
        places = range(len(found))
        for shift, name, label, colour in (
            (-0.08, "independent", "K independent trainers", "#b3541e"),
            (0.08, "tournament", "K trainers in a tournament", "#1f5fa8"),
        ):
            values = [getattr(quality, name) for quality in found]
            for place, of in zip(places, values, strict=True):
                axes.plot([place + shift] * len(of), of, "o", color=colour, alpha=0.35, markersize=4)
            medians = [median(of) for of in values]
            axes.plot([p + shift for p in places], medians, "-", color=colour, label=label)
        axes.axhline(median(single), color="#555555", linestyle=":", label="one trainer, all samples")
        axes.set(yscale="log", ylabel="validation loss at equal visits", xlabel="trainers K")
        axes.set_xticks(list(places), [str(quality.num) for quality in found])
        axes.legend(frameon=False, fontsize=8)
        save(figure, "tournament")


def quality(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Losses of K trainers, with and without a tournament; three seeds, whatever the number of rounds."""
    data = icf_scalars(tmp, num)
    single, found = Runs(tmp, data, INTERVAL).measure(STEPS, NUMBERS, SEEDS)
    draw(single, found)
    what = f"validation loss of one trainer on {num // 4:,} ICF samples, {STEPS:,} steps, {len(SEEDS)} seeds"
    rows = [Row(what, f"{median(single):.5f}", floor="reported")]
    for of in found:
        ours, other = median(of.tournament), median(of.independent)
        better = ratio(of.independent, of.tournament)
        what = f"best of {of.num} trainers at the same number of visits: tournament, against independent trainers"
        rows.append(Row(what, f"{ours:.5f}", f"{other:.5f}", f"{better:.2f}×", "> 1×"))
        speed, tried = of.speed_up, min(of.num, BEYOND)
        reached = f"{speed:.2f}× = {speed / of.num:.0%} efficiency"
        shown = reached if speed == speed else f"not reached in {tried} times the visits"
        what = f"modelled parallel time of {of.num} trainers to the one trainer's loss, speed-up"
        rows.append(Row(what, shown, floor="reported"))
    return rows


BUSY = """
data: {data}
directory: {directory}
model: {{name: regressor, width: 512, depth: 4}}
training: {{steps: {steps}, batch_size: 128, device: cpu, threads: 1}}
tournament: {{trainers: {trainers}{more}}}
"""


def overhead(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Share of a trainer's time that goes into rounds at the default interval."""
    data = make_scalars(tmp, num)
    text = BUSY.format(data=data, directory=tmp / "run", steps=500 * (rounds + 1) + 1, trainers=2, more="")
    prepared = check(parse_config(text, "bench.yaml"))
    courses = run_trainers(prepared)
    interval = prepared.config.tournament.interval
    costs = [cost for course in courses for _, cost in course.rounds]
    work_s = median(course.step_s for course in courses) * interval
    cost_s = median(costs)
    what = f"a round (exchange and evaluation) of a model of {prepared.facts.num_parameters:,} parameters"
    shown = f"{cost_s:.2f} s after {work_s:.2f} s of training"
    return [Row(what, shown, "", f"{cost_s / (cost_s + work_s):.1%}", "≤ 3 %")]


def kill(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One of three trainers is killed: how long the others wait for it."""
    data = make_scalars(tmp, num)
    lost, interval_s = [], []
    for _ in range(rounds):
        folder = fresh(tmp / "killed")
        text = BUSY.format(
            data=data, directory=folder / "run", steps=1200, trainers=3, more=", interval: 100"
        )
        (folder / "train.yaml").write_text(text)
        seconds = _survivors(folder, victim=2, at_round=4)
        lost.append(seconds[0])
        interval_s.append(seconds[1])
    what = "kill -9 of one of three trainers that meet through files: what the others wait for it"
    shown = f"{max(lost):.2f} s; a round comes every {median(interval_s):.2f} s"
    share = ratio(lost, interval_s)
    return [Row(what, shown, "", f"{share:.2f} rounds", "≤ 1 round")]


def _survivors(folder: Path, victim: int, at_round: int) -> tuple[float, float]:
    """The longest extra wait of a survivor in a round after the kill, and how long an interval takes."""
    log = (folder / "log").open("wb")
    command = subprocess.Popen([MERLIN, "train", str(folder / "train.yaml")], stdout=log, stderr=log)
    run = RunDirectory(folder / "run")

    def played(trainer: int) -> list[dict[str, Any]]:
        lines = read_metrics(run.trainer(trainer).path / "metrics.jsonl")
        return [line for line in lines if line["kind"] == "round"]

    while len(played(victim)) < at_round and command.poll() is None:
        time.sleep(0.01)
    for pid in children(command.pid):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if str(victim).encode() == arguments[-2]:
            os.kill(pid, signal.SIGKILL)
    command.wait()
    last = max(line["round"] for line in played(victim))
    others = [played(k) for k in range(3) if k != victim]
    waits = [line["values"]["wait_s"] for lines in others for line in lines if line["round"] <= last]
    after = [line["values"]["wait_s"] for lines in others for line in lines if line["round"] > last]
    lines = read_metrics(run.trainer(0).path / "metrics.jsonl")
    end = [line for line in lines if line["kind"] == "train"][-1]
    per_step = end["time_s"] / end["step"]
    return max(0.0, max(after) - median(waits)), per_step * 100
