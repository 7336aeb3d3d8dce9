"""Trainers that average or merge their models, where samples are so many that one trainer cannot see them often.

The 15 scalars of the ICF study from its five inputs, and an image where asked for, by the regressor; the targets that
are trained on have noise of a share of their spread, those of the validation have none. One trainer has all samples; K
trainers have a K-th each, and their runs are shorter. All trainers of a run live in one process, and train and play in
turns. A parallel run is modelled: each trainer has a clock, which its seconds of computing move on; in a round all
clocks are set to the latest, because trainers wait for each other, and what is exchanged travels over `LINK`. What a
few steps take is drawn from those of the one trainer, which had the machine for itself, as each trainer of a cluster
has: trainers that take turns in one process find the core's caches full of another one's data. All trainers get
stretches that followed each other, so that a minute in which this machine was slow slows all of them, and does not
look as if one waited for another. Rounds are measured as they come, in turns.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imported_data import import_arrays
from msgspec.structs import replace
from numpy.typing import NDArray
from open_loops import opened_loop
from tournament import icf_inputs

from merlin.shards.ensemble import open_shards
from merlin.train.config_file import parse_config
from merlin.train.prepare import check
from merlin.train.results.history import Round
from merlin.train.tournament.averaging import Total, is_sound
from merlin.train.tournament.exchange import Mean, OfferedModel

SAMPLES = 205_000
IMAGE, POOLED = "image_90_0", 4  # of 64 by 64 pixels and 4 channels; so many pixels of a row become one
STRETCH = 10  # steps that are timed together
LOGARITHM_FROM = 3.0  # times the least value
BLOCK = 4096  # implosions that are advanced together
SPLITS = "splits: {train: 0.975, validation: 0.025}\nsamples_per_shard: 250000"
CONFIG = """
data: {data}
directory: {directory}
seed: {seed}
model: {{name: regressor, width: {width}, depth: 3}}
optimizer: {{lr: {lr}}}
schedule: {{name: cosine}}
training: {{steps: {steps}, batch_size: {batch}, device: cpu, threads: 1, validate_every: 1000000, log_every: 100}}
loader: {{partition: equal}}
tournament: {{trainers: {trainers}, wait: 100000, {tournament}}}
"""


@dataclass(frozen=True)
class Link:
    """What connects two trainers, in each direction."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, num_bytes: float, messages: int) -> float:
        return messages * self.latency_s + num_bytes / self.bytes_per_s


LINK = Link(10e9 / 8, 50e-6)


def all_reduced(num_values: int, trainers: int) -> float:
    """Bytes that each of the trainers sends, so that all have the mean of a vector: a slice each, there and back."""
    return 2 * (trainers - 1) / trainers * 4 * num_values


def simulate(num: int, with_image: bool = False) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Inputs and outputs of `num` implosions, and samples per second of computing on one core.

    Outputs are the scalars and, with an image, that of the second line of sight: what 4 by 4 pixels have in common.
    """
    inputs = icf_inputs(num)
    blocks = [
        {name: values[lo : lo + BLOCK] for name, values in inputs.items()} for lo in range(0, num, BLOCK)
    ]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        made = list(pool.map(_with_image if with_image else _scalars_alone, blocks))
    parts, seconds = [values for values, _ in made], sum(s for _, s in made)
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name, values in outputs.items():  # yields span decades, whose logarithms are learned far better
        if values.ndim == 1 and values.min() > 0 and values.max() > LOGARITHM_FROM * values.min():
            outputs[name] = np.log(values)
    return inputs, outputs, num / seconds


def _scalars_alone(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    import icf
    import icf_diagnostics
    import icf_implosion

    begin = time.process_time()
    values, _ = icf_diagnostics.scalars(icf_implosion.implode(icf.design(inputs)))
    return values, time.process_time() - begin


def _with_image(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Of all that the study's function makes, which is what is timed."""
    import icf

    begin = time.process_time()
    made = icf.simulate(inputs, None)
    seconds = time.process_time() - begin
    image = made[IMAGE]
    num, rows, columns, channels = image.shape
    small = image.reshape(num, rows // POOLED, POOLED, columns // POOLED, POOLED, channels).mean((2, 4))
    return {name: values for name, values in made.items() if values.ndim == 1} | {IMAGE: small}, seconds


def write_data(folder: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any], noise: float) -> Path:
    """A data set whose samples to train on have noise of a share of each output's standard deviation.

    Of an image it is that of each channel over all of its pixels and samples.
    """
    fields = ", ".join(
        f"{name}: {{kind: {'scalar' if values.ndim == 1 else 'image'}}}" for name, values in outputs.items()
    )
    schema = f"inputs: [{', '.join(inputs)}]\nfields: {{{fields}}}\n{SPLITS}\n"

    clean = import_arrays(folder / "clean", schema, {**inputs, **outputs})
    if not noise:
        return clean
    ens, rng = open_shards(clean), np.random.default_rng(1)
    rows = ens.sample_id[ens.splits["train"]]
    noisy = {name: values.copy() for name, values in outputs.items()}
    for values in noisy.values():
        spread = values.std(axis=None if values.ndim == 1 else (0, 1, 2))
        drawn = rng.standard_normal(
            (len(rows), *values.shape[1:]), np.float32 if values.ndim > 1 else np.float64
        )
        values[rows] += (noise * spread * drawn).astype(values.dtype)
    return import_arrays(folder / "noisy", schema, {**inputs, **noisy})


class Table:
    """A transport between trainers of one process, who put their models on a table before a round.

    Each works out its slice of a mean, as in a process group, and finds the rest there.
    """

    def __init__(self, states: dict[int, Any], index: int, num: int) -> None:
        self.states, self._index, self._num = states, index, num
        self.values: dict[int, torch.Tensor] = {}
        self.mean_of_all: Mean | None = None

    def participants(self, number: int) -> list[int]:
        return list(range(self._num))

    def offer(self, number: int, summary: Any, state: Any) -> None:
        pass

    def take(self, number: int, moves: Mapping[int, int], limit_s: float) -> Any:
        yield from ()
        giver = moves.get(self._index)
        return None if giver is None else OfferedModel(giver, number, self.states[giver])

    def mean(self, number: int, own: torch.Tensor, limit_s: float) -> Any:
        yield from ()
        assert is_sound(own) and self.mean_of_all is not None
        trainers = self.participants(number)
        width = -(-len(own) // len(trainers))
        mine = slice(width * self._index, width * (self._index + 1))
        torch.stack([self.values[k][mine] for k in trainers]).mean(0)  # what it would do for the others
        return self.mean_of_all

    def close(self, finished: bool) -> None:
        pass


@dataclass
class Course:
    """What a run reached: at looks the steps of each trainer, the modelled seconds, and the least validation loss."""

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    num_rounds: int = 0
    sent_bytes: float = 0.0  # by each trainer
    pace: list[float] = field(default_factory=list)  # seconds of a step, of stretches of a few steps
    round_s: float = 0.0
    num_values: int = 0  # that a model has, with its moments
    num_parameters: int = 0
    rounds: list[Round] = field(default_factory=list)  # of pairs
    best: int = 0  # which trainer has the final loss

    @property
    def final(self) -> float:
        return self.losses[-1]

    def reached(self, loss: float) -> float:
        """Modelled seconds until the loss was no more than that; infinite if it never was."""
        return next((s for s, of in zip(self.seconds, self.losses, strict=True) if of <= loss), math.inf)

    @property
    def step_s(self) -> float:
        return float(np.mean(self.pace))


@dataclass(frozen=True)
class Recipe:
    """How trainers work: each makes so many steps."""

    trainers: int
    steps: int
    lr: float  # of one trainer; what trainers exchange is trained with lr_scale times that
    tournament: str = "strategy: none"
    batch: int = 32
    width: int = 64
    words: tuple[str, ...] = ()  # as on the command line


def stretches(draws: np.random.Generator, pace: NDArray[np.float64], num: int, trainers: int) -> Any:
    """Seconds of a step (num, trainers): in each row of stretches that followed each other.

    Not of the first stretch, which is the start of a run, and takes many times as long.
    """
    first = draws.integers(1, len(pace) - trainers + 1, size=num)
    return pace[first[:, None] + np.arange(trainers)]


def run(
    data: Path, folder: Path, seed: int, recipe: Recipe, pace: Sequence[float] = (), looks: int = 40
) -> Course:
    """Train all trainers in turns, and look at their losses now and then; their `pace` is that of one alone."""
    text = CONFIG.format(
        data=data, directory=folder, seed=seed, width=recipe.width, lr=recipe.lr, steps=recipe.steps,
        batch=recipe.batch, trainers=recipe.trainers, tournament=recipe.tournament,
    )  # fmt: skip
    prepared = check(parse_config(text, "bench.yaml", recipe.words))
    prepared = replace(prepared, run=prepared.begin())
    with ExitStack() as stack:
        loops = [stack.enter_context(opened_loop(prepared, index)) for index in range(recipe.trainers)]
        return Play(loops, recipe.steps, pace).play(looks)


class Play:
    """The trainers of a run in turns, and their clocks."""

    def __init__(self, loops: Sequence[Any], num_steps: int, pace: Sequence[float]) -> None:
        self.loops, self.num_steps, self.pace = loops, num_steps, np.array(pace)
        self._draws = np.random.default_rng(0)
        self.timing = loops[0]._timing
        self.clocks = [0.0] * len(loops)
        self.course = Course()
        self.states: dict[int, Any] = {}
        self._random: dict[int, Any] = {}
        for loop in loops if self.timing is not None else ():
            loop.tournament._transport.close(False)
            loop.tournament._transport = Table(self.states, loop.trainer.index, len(loops))

    def play(self, looks: int) -> Course:
        course, num = self.course, len(self.loops)
        marks = sorted({round(self.num_steps * (i + 1) / looks) for i in range(looks)})
        following = self.num_steps + 1 if self.timing is None else self.timing.following(0)
        step = 0
        while step < self.num_steps:
            target = min(following, next(mark for mark in marks if mark > step))
            while step < target:
                self._train(min(STRETCH, target - step))
                step = min(target, step + STRETCH)
            met = False
            if step == following and step <= self.timing.final:
                self._round()
                following, met = self.timing.following(step), True
            if step in marks:
                self._look(step, self.loops[:1] if met and self.loops[0]._averages else self.loops)
        course.round_s /= max(1, course.num_rounds * num)
        course.num_values = len(self.loops[0].trainer.values())
        course.num_parameters = sum(p.numel() for p in self.loops[0].trainer.trainee.parameters())
        return course

    def _train(self, num: int) -> None:
        drawn = stretches(self._draws, self.pace, 1, len(self.loops))[0] if len(self.pace) else None
        if drawn is not None and not self.course.pace:
            drawn[:] = self.pace[0]  # all of them start at the same time
        for k, loop in enumerate(self.loops):
            if k in self._random:
                torch.set_rng_state(self._random[k])
            begin = time.thread_time()
            loop.trainer.train_steps(num)
            taken = time.thread_time() - begin
            self.course.pace.append(taken / num)
            self.clocks[k] += taken if drawn is None else num * float(drawn[k])
            self._random[k] = torch.get_rng_state()
            loop.trainer.take_losses()  # kept, each would keep a piece of memory from being used again

    def _round(self) -> None:
        """All wait for the slowest, exchange, and play."""
        course, num = self.course, len(self.loops)
        course.num_rounds += 1
        size = 4.0 * len(self.loops[0].trainer.values())
        if self.loops[0]._averages:
            self._lay_mean()
            size = all_reduced(round(size) // 4, num)
        else:
            self.states |= {k: loop.trainer.export_state() for k, loop in enumerate(self.loops)}
        course.sent_bytes += size
        latest = max(self.clocks) + LINK.seconds(size, 2)
        for k, loop in enumerate(self.loops):
            begin = time.thread_time()
            facts = loop.tournament.play(loop.trainer, course.num_rounds)
            taken = time.thread_time() - begin
            if "kept" in facts and not loop._averages:
                met = {"partner": facts["partner"], "kept": facts["kept"]}
                course.rounds.append(Round(course.num_rounds, loop.trainer.step, k, **met))
            self.clocks[k] = latest + taken
            course.round_s += taken

    def _lay_mean(self) -> None:
        total, values = Total(), {k: loop.trainer.values() for k, loop in enumerate(self.loops)}
        for k, of in values.items():
            total.add(k, of)
        mean = total.mean()
        assert mean is not None and len(mean.trainers) == len(values)
        for loop in self.loops:
            loop.tournament._transport.values, loop.tournament._transport.mean_of_all = values, mean

    def _look(self, step: int, loops: Sequence[Any]) -> None:
        self.course.steps.append(step)
        self.course.seconds.append(max(self.clocks))
        losses = [loop.trainer.evaluate(loop.validation)["loss"] for loop in loops]
        self.course.losses.append(min(losses))
        self.course.best = losses.index(min(losses))
