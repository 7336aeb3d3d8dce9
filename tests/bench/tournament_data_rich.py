"""All ways in which several trainers can work, against one trainer, where a run sees each sample at most five times.

The targets have noise. The learning rate of one trainer is the one with which it did best of 0.0035, 0.005, 0.007 and
0.01; a longer memory of Adam's first moment does not help it. A round is a seed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median_low

import numpy as np
from data_rich import (
    LINK,
    SAMPLES,
    STRETCH,
    Course,
    Link,
    Recipe,
    all_reduced,
    run,
    simulate,
    stretches,
    write_data,
)
from loss_curves import draw, draw_lineage
from measure import fresh, median
from report import Row, floor

NOISE = 0.05  # of an output's standard deviation
SLOW = Link(100e6 / 8, 50e-6)
# as the rule chooses in a process group, and far apart
AVERAGING = "strategy: averaging, interval: {}, interval_end: {}, lr_scale: {}"
PAIRS = "strategy: random_pairwise, merge: {}, interval: 100, lr_scale: {}, tournament_fraction: 0.02"
FLOORS = {4: "≥ 2.5×", 8: "≥ 3.5×"}
NUM = 4  # trainers of a tournament
ROUNDS_DRAWN = 40  # of a lineage

Name = tuple[str, int]  # how trainers work, and how many they are
ONE, CLEAN_ONE, CLEAN = ("one", 1), ("one without noise", 1), ("averaging without noise", NUM)
RARELY, MERGING, CHOOSING = ("averaging rarely", NUM), ("merging", NUM), ("choosing", NUM)
SCALARS: Mapping[Name, Recipe] = {
    ONE: Recipe(1, 32_000, 0.007),
    ("averaging", 2): Recipe(2, 18_000, 0.007, AVERAGING.format(10, 5, 2)),
    ("averaging", 4): Recipe(4, 10_000, 0.007, AVERAGING.format(10, 5, 4)),
    ("averaging", 8): Recipe(8, 6_500, 0.007, AVERAGING.format(5, 5, 5.66)),
    ("averaging", 16): Recipe(16, 5_000, 0.007, AVERAGING.format(2, 2, 8)),
    RARELY: Recipe(NUM, 17_000, 0.007, AVERAGING.format(100, 5, 4)),
    MERGING: Recipe(NUM, 16_500, 0.007, PAIRS.format("true", 2.4)),
    CHOOSING: Recipe(NUM, 16_500, 0.007, PAIRS.format("false", 1)),
}
WITHOUT_NOISE: Mapping[Name, Recipe] = {
    CLEAN_ONE: Recipe(1, 16_000, 0.01),
    CLEAN: Recipe(NUM, 7_800, 0.005, AVERAGING.format(10, 5, 4)),
}
IMAGES = 105_000  # samples with an image
# The rate of one trainer is the best of 0.003, 0.005, 0.0065 and 0.008, in shorter runs.
WITH_IMAGE: Mapping[Name, Recipe] = {
    ONE: Recipe(1, 24_000, 0.0065),
    ("averaging", 4): Recipe(4, 9_000, 0.0065, AVERAGING.format(10, 5, 4)),
    ("averaging", 8): Recipe(8, 7_000, 0.0065, AVERAGING.format(5, 5, 5.66)),
}
FACTORS = {
    2: 2.0,
    4: 4.0,
    8: 5.66,
    16: 8.0,
}  # of the learning rate, of synchronous data parallel as of averaging


@dataclass(frozen=True)
class Runner:
    """Runs in this process, or several beside each other; `scale` shortens them all, for trying the harness."""

    folder: Path
    scale: float

    def run(self, data: Path, recipe: Recipe, seed: int, pace: Sequence[float] = ()) -> Course:
        recipe = replace(recipe, steps=max(40, round(recipe.steps * self.scale)))
        place = fresh(self.folder / f"run-{os.getpid()}")
        found = run(data, place, seed, recipe, pace)
        print(f"seed {seed}:", recipe, f"{found.final:.3g} after {found.seconds[-1]:.2f} s", flush=True)
        return found

    def run_all(self, jobs: Mapping[tuple[Name, int], tuple[Path, Recipe, Sequence[float]]]) -> Courses:
        """A job by its name and seed: as many at a time as there are cores, the longest first."""
        work = sorted(jobs.items(), key=lambda job: -job[1][1].steps * job[1][1].trainers)
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
            running = {
                key: pool.submit(self.run, data, recipe, key[1], pace) for key, (data, recipe, pace) in work
            }
            done = {key: future.result() for key, future in running.items()}
        found: Courses = {}
        for name, seed in sorted(done):
            found.setdefault(name, []).append(done[name, seed])
        return found


Courses = dict[Name, list[Course]]  # of all seeds


def compare(
    runner: Runner,
    data: Path,
    recipes: Mapping[Name, Recipe],
    seeds: Sequence[int],
    others: Mapping[Name, tuple[Path, Recipe]],
) -> Courses:
    """Runs of all recipes, of synchronous data parallel, and of what else can be done in the same time.

    `others` have data of their own, and the pace of the one trainer.
    """
    ones = [runner.run(data, recipes[ONE], seed) for seed in seeds]  # nothing else runs meanwhile
    averaging = {num: recipe for (how, num), recipe in recipes.items() if how == "averaging"}
    alike = {
        ("synchronous", num): replace(
            recipes[ONE], steps=of.steps, lr=recipes[ONE].lr * FACTORS[num], batch=recipes[ONE].batch * num
        )
        for num, of in averaging.items()
    }
    wanted = {name: (data, recipe) for name, recipe in {**recipes, **alike}.items() if name != ONE}
    found = {ONE: ones} | runner.run_all(
        {
            (name, seed): (*job, ones[i].pace)
            for i, seed in enumerate(seeds)
            for name, job in {**wanted, **others}.items()
        }
    )
    equal: dict[tuple[Name, int], tuple[Path, Recipe, Sequence[float]]] = {}
    for num in averaging:
        for i, seed in enumerate(seeds):
            steps = round(found["averaging", num][i].seconds[-1] / ones[i].step_s / runner.scale)
            for how, trainers in (("one in equal time", 1), ("independent", num)):
                recipe = replace(recipes[ONE], trainers=trainers, steps=steps)
                equal[(how, num), seed] = data, recipe, ones[i].pace
        found["synchronous", num] = [
            in_parallel(course, one, num, LINK)
            for course, one in zip(found["synchronous", num], ones, strict=True)
        ]
    return found | runner.run_all(equal)


def in_parallel(course: Course, one: Course, num: int, link: Link) -> Course:
    """A run with large batches, of which each of `num` ranks computes a part, as large as the one trainer's."""
    sent = all_reduced(course.num_parameters, num)
    slowest = stretches(np.random.default_rng(0), np.array(one.pace), 10_000, num).max(1).mean()
    step_s = float(slowest) + link.seconds(sent, 2)
    start_s = STRETCH * one.pace[0]
    seconds = [start_s + (step - STRETCH) * step_s for step in course.steps]
    return replace(course, seconds=seconds, sent_bytes=sent * course.steps[-1])


def speed_up(alone: Course, together: Course) -> float:
    """In modelled time, to the final loss of the one trainer; 0 if that was not reached."""
    return alone.seconds[-1] / together.reached(alone.final)


def shown(values: Sequence[float]) -> str:
    """The median of the seeds, and their range; 0 is what was not reached."""
    if median_low(values) == 0:
        return "not reached" if not any(values) else f"not reached by {values.count(0)} of {len(values)}"
    spread = f" ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else ""
    return f"{median(values):.2f}×{spread}"


def middle(courses: Sequence[Course]) -> str:
    return f"{median(of.final for of in courses):.2e}"


def _speed_row(what: str, alone: Sequence[Course], together: Sequence[Course], floor: str) -> Row:
    speeds = [speed_up(a, b) for a, b in zip(alone, together, strict=True)]
    return Row(what, middle(together), middle(alone), shown(speeds), floor)


def _against(what: str, ours: Sequence[Course], other: Sequence[Course], least: float) -> Row:
    """`least` is what the other loss is to be in our losses, at least."""
    better = [b.final / a.final for a, b in zip(ours, other, strict=True)]
    wanted = f"≥ {least:g}×" if least > 1 else "> 1×"
    is_met = round(median(better), 2) >= least
    return Row(what, middle(ours), middle(other), shown(better), floor(wanted, is_met))


def _megabytes(courses: Sequence[Course]) -> str:
    return f"{courses[0].sent_bytes / 1e6:,.0f} MB"


def _rows_of(num: int, found: Courses, told: str, floor: str) -> list[Row]:
    ours, synchronous = found["averaging", num], found["synchronous", num]
    traffic = synchronous[0].sent_bytes / ours[0].sent_bytes
    equal = f"{num} averaging trainers, final loss against {{}} in the same time, {told}"
    return [
        _speed_row(
            f"{num} averaging trainers, time to the final loss of one, {told}; each sends "
            f"{_megabytes(ours)}", found[ONE], ours, floor,
        ),
        _speed_row(
            f"the same for synchronous data parallel with {num} times the batch; each rank sends "
            f"{_megabytes(synchronous)}, {traffic:.1f} times as much", found[ONE], synchronous, "reported",
        ),
        _against(equal.format("one trainer"), ours, found["one in equal time", num], 1),
        _against(equal.format(f"the best of {num} independent ones"), ours, found["independent", num], 1.4),
    ]  # fmt: skip


def _lines_of(num: int, found: Courses) -> dict[str, Course]:
    """Loss curves of the first seed."""
    return {
        "one trainer": found[ONE][0],
        "averaging": found["averaging", num][0],
        "synchronous data parallel": found["synchronous", num][0],
        "independent, the best": found["independent", num][0],
    }


def _tournament_lines(found: Courses) -> dict[str, Course]:
    one = found[ONE][0]
    return {
        "one trainer": one,
        "tournament that merges": found[MERGING][0],
        "synchronous, 100 Mbit/s": in_parallel(found["synchronous", NUM][0], one, NUM, SLOW),
        "independent, the best": found["independent", NUM][0],
        "tournament": found[CHOOSING][0],
    }


def data_rich(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Scalars with noise and without, at as many seeds as there are rounds."""
    inputs, scalars, per_s = simulate(num)
    noisy = write_data(tmp / "with", inputs, scalars, NOISE)
    clean = write_data(tmp / "without", inputs, scalars, 0.0)
    others = {name: (clean, recipe) for name, recipe in WITHOUT_NOISE.items()}
    found = compare(Runner(tmp, num / SAMPLES), noisy, SCALARS, range(rounds), others)
    told = f"{num:,} noisy samples"
    numbers = [trainers for how, trainers in SCALARS if how == "averaging"]
    panels = {f"{trainers} trainers": _lines_of(trainers, found) for trainers in numbers}
    panels[f"{NUM} trainers in tournaments"] = _tournament_lines(found)
    draw("tournament-data-rich", panels, f"validation loss, {told}", (8e-6, 1e-3))
    for name in (CHOOSING, MERGING):
        first = [played for played in found[name][0].rounds if played.number <= ROUNDS_DRAWN]
        draw_lineage(f"tournament-lineage-{name[0]}", first, NUM, found[name][0].best)
    rows = [_simulated("scalars alone", per_s)]
    for trainers in numbers:
        rows += _rows_of(trainers, found, told, FLOORS.get(trainers, "reported"))
    to_one = partial("{}, time to the final loss of one, {}".format)
    without = f"{num:,} samples without noise"
    return [
        *rows,
        _speed_row(to_one(f"{NUM} averaging trainers", without), found[CLEAN_ONE], found[CLEAN], "≥ 1.7×"),
        _speed_row(
            to_one(f"{NUM} trainers that average every 100 steps (at the end every 5)", told),
            found[ONE], found[RARELY], "≥ 1.7×",
        ),
        _speed_row(
            to_one(f"a tournament of {NUM} trainers whose pairs merge every 100 steps", told),
            found[ONE], found[MERGING], "≥ 1.7×",
        ),
        _speed_row(
            to_one(f"a tournament of {NUM} trainers whose pairs keep the better model every 100 steps", told),
            found[ONE], found[CHOOSING], "reported",
        ),
        _cost(found["averaging", NUM]),
    ]  # fmt: skip


def images(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Scalars and an image."""
    inputs, outputs, per_s = simulate(num, with_image=True)
    data = write_data(tmp, inputs, outputs, NOISE)
    del inputs, outputs
    found = compare(Runner(tmp, num / IMAGES), data, WITH_IMAGE, range(rounds), {})
    told = f"{num:,} noisy samples with images"
    panels = {f"{trainers} trainers": _lines_of(trainers, found) for trainers in (4, 8)}
    draw("tournament-images", panels, "validation loss, scalars and an image", (1e-4, 1e-2))
    rows = [_simulated("scalars, burn history and three images of 64 × 64 × 4", per_s)]
    for trainers in (4, 8):
        rows += _rows_of(trainers, found, told, "reported")
    return [*rows, _cost(found["averaging", 4])]


def _simulated(what: str, per_s: float) -> Row:
    return Row(f"ICF samples simulated, {what}, one core", f"{per_s:,.0f}/s", floor="reported")


def _cost(courses: Sequence[Course]) -> Row:
    round_ms, step_ms = (1000 * median(getattr(of, key) for of in courses) for key in ("round_s", "step_s"))
    what = f"computing of a round of averaging, a model of {courses[0].num_parameters:,} parameters"
    return Row(what, f"{round_ms:.2f} ms; a step takes {step_ms:.2f} ms", floor="reported")


def defaults(tmp: Path, rounds: int, num: int) -> list[Row]:
    """What two of the defaults gain."""
    inputs, scalars, _ = simulate(num)
    data = write_data(tmp, inputs, scalars, NOISE)
    told = f"{num:,} noisy samples"
    one, eight = SCALARS[ONE], SCALARS["averaging", 8]
    recipes: dict[Name, Recipe] = {
        ("as the rule says", 1): one,
        ("off centre", 1): replace(one, words=("normalise.inputs=minmax",)),
        ("as the rule says", 8): eight,
        ("short moments", 8): replace(eight, words=("optimizer.betas=[0.9, 0.999]",)),
    }
    found = Runner(tmp, num / SAMPLES).run_all(
        {(name, seed): (data, recipe, ()) for name, recipe in recipes.items() for seed in range(rounds)}
    )
    return [
        _against(
            f"final loss of one trainer, inputs with mean 0 and standard deviation 1 against 0 to 1, {told}",
            found["as the rule says", 1], found["off centre", 1], 1,
        ),
        _against(
            f"final loss of 8 averaging trainers, Adam's first moment as the rule says against 0.9, {told}",
            found["as the rule says", 8], found["short moments", 8], 1,
        ),
    ]  # fmt: skip
