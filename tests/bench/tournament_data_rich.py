"""Trainers that average or merge their models against one trainer and against synchronous data parallel.

In the regime that they are for: samples so many that a run sees each at most five times, the targets with noise. The
learning rate of one trainer is the one with which it did best of 0.0035, 0.005, 0.007 and 0.01; a longer memory of
Adam's first moment does not help it. A round is a seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from data_rich import (
    LINK,
    SAMPLES,
    STRETCH,
    Course,
    Recipe,
    all_reduced,
    run,
    simulate,
    stretches,
    write_data,
)
from loss_curves import draw
from measure import fresh
from report import Row

NOISE = 0.05  # of a scalar's standard deviation
# as the rule chooses in a process group, and far apart
AVERAGING = "strategy: averaging, interval: {}, interval_end: {}, lr_scale: {}"
MERGING = "strategy: random_pairwise, merge: true, interval: 100, lr_scale: 2.4, tournament_fraction: 0.02"
ONE = Recipe(1, 32_000, 0.007)
AVERAGED = {
    2: Recipe(2, 18_000, 0.007, AVERAGING.format(10, 5, 2)),
    4: Recipe(4, 10_000, 0.007, AVERAGING.format(10, 5, 4)),
    8: Recipe(8, 6_500, 0.007, AVERAGING.format(5, 5, 5.66)),
    16: Recipe(16, 5_000, 0.007, AVERAGING.format(2, 2, 8)),
}
SYNCHRONOUS = {  # with the same factors of the learning rate, and as many steps
    num: Recipe(1, of.steps, 0.007 * scale, batch=32 * num)
    for (num, of), scale in zip(AVERAGED.items(), (2, 4, 5.66, 8), strict=True)
}
MERGED = Recipe(4, 16_500, 0.007, MERGING)
FAR_APART = Recipe(4, 17_000, 0.007, AVERAGING.format(100, 5, 4))
CLEAN_ONE = Recipe(1, 16_000, 0.01)
CLEAN_AVERAGED = Recipe(4, 7_800, 0.005, AVERAGING.format(10, 5, 4))
SHORT_MOMENTS = replace(AVERAGED[8], words=("optimizer.betas=[0.9, 0.999]",))
OFF_CENTRE = replace(ONE, words=("normalise.inputs=minmax",))
INDEPENDENT = (4, 8)  # of which the best of independent trainers is looked at, too
FLOORS = {4: "≥ 2.5×", 8: "≥ 3.5×"}


class Runs:
    """Runs of one seed; `scale` shortens them all, for trying the harness."""

    def __init__(self, folder: Path, seed: int, scale: float) -> None:
        self.folder, self.seed, self.scale = folder, seed, scale
        self.pace: list[float] = []

    def run(self, data: Path, recipe: Recipe) -> Course:
        recipe = replace(recipe, steps=max(40, round(recipe.steps * self.scale)))
        found = run(data, fresh(self.folder / "run"), self.seed, recipe, self.pace)
        self.pace = self.pace or found.pace  # of the first run, whose trainer is alone
        print(recipe, f"{found.final:.3g} after {found.seconds[-1]:.2f} s", flush=True)
        return found


class Compared(Runs):
    """One trainer, averaging trainers, and what else can be done in the same time, with noise.

    What has no floor, and what takes long, is run at the first seed alone.
    """

    def __init__(self, folder: Path, data: Path, seed: int, scale: float) -> None:
        super().__init__(folder, seed, scale)
        is_first, with_floors = seed == 0, {num: AVERAGED[num] for num in FLOORS}
        self.one = self.run(data, ONE)
        self.averaged = {
            num: self.run(data, of) for num, of in (AVERAGED if is_first else with_floors).items()
        }
        self.shorter = {num: self.within(data, of, 1) for num, of in self.averaged.items()}
        self.synchronous: dict[int, Course] = {}
        self.independent: dict[int, Course] = {}
        if is_first:
            for num, recipe in SYNCHRONOUS.items():
                self.synchronous[num] = self.in_parallel(self.run(data, recipe), num)
            for num in INDEPENDENT:
                self.independent[num] = self.within(data, self.averaged[num], num)

    def within(self, data: Path, other: Course, trainers: int) -> Course:
        """One trainer, or several that never meet, with as many steps as fit into the time of another run."""
        steps = round(other.seconds[-1] / self.one.step_s / self.scale)
        return self.run(data, replace(ONE, trainers=trainers, steps=steps))

    def in_parallel(self, course: Course, num: int) -> Course:
        """A run with large batches, of which each of `num` ranks computes a part, as large as the one trainer's."""
        sent = all_reduced(course.num_parameters, num)
        slowest = stretches(np.random.default_rng(0), np.array(self.one.pace), 10_000, num).max(1).mean()
        step_s = float(slowest) + LINK.seconds(sent, 2)
        start_s = STRETCH * self.one.pace[0]
        seconds = [start_s + (step - STRETCH) * step_s for step in course.steps]
        return replace(course, seconds=seconds, sent_bytes=sent * course.steps[-1])


def speed_up(alone: Course, together: Course) -> float:
    """In modelled time, to the final loss of the one trainer; 0 if that was not reached."""
    return alone.seconds[-1] / together.reached(alone.final)


def shown(values: Sequence[float]) -> str:
    """The median of the seeds, and their range; 0 is what was not reached."""
    if statistics.median_low(values) == 0:
        return "not reached" if not any(values) else f"not reached by {values.count(0)} of {len(values)}"
    spread = f" ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.2f}×{spread}"


def middle(courses: Sequence[Course]) -> str:
    return f"{statistics.median(of.final for of in courses):.2e}"


def _speed_row(what: str, alone: Sequence[Course], together: Sequence[Course], floor: str) -> Row:
    speeds = [speed_up(a, b) for a, b in zip(alone, together, strict=True)]
    return Row(what, middle(together), middle(alone), shown(speeds), floor, "")


def _against(what: str, ours: Sequence[Course], other: Sequence[Course], floor: str) -> Row:
    better = [b.final / a.final for a, b in zip(ours, other, strict=True)]
    return Row(what, middle(ours), middle(other), shown(better), floor, "")


def _rows_of(num: int, all_seeds: Sequence[Compared], told: str) -> list[Row]:
    first, seeds = all_seeds[0], [of for of in all_seeds if num in of.averaged]
    ones, averaged = [of.one for of in seeds], [of.averaged[num] for of in seeds]
    synchronous, alone = first.synchronous[num], f"at one seed, {told}"
    traffic = synchronous.sent_bytes / averaged[0].sent_bytes
    told = told if len(seeds) == len(all_seeds) else alone
    equal = f"{num} averaging trainers, final loss against {{}} in the same modelled time, {{}}"
    rows = [
        _speed_row(
            f"{num} averaging trainers, modelled time to the final loss of one, {told}; each sends "
            f"{averaged[0].sent_bytes / 1e6:,.0f} MB", ones, averaged, FLOORS.get(num, "reported"),
        ),
        _speed_row(
            f"the same for synchronous data parallel with {num} times the batch, at one seed; each rank sends "
            f"{synchronous.sent_bytes / 1e6:,.0f} MB, {traffic:.1f} times as much",
            [first.one], [synchronous], "reported",
        ),
        _against(equal.format("one trainer", told), averaged, [of.shorter[num] for of in seeds], "> 1×"),
    ]  # fmt: skip
    if num in INDEPENDENT:
        what = equal.format(f"the best of {num} independent ones", alone)
        rows.append(_against(what, averaged[:1], [first.independent[num]], "≥ 1.4×"))
    return rows


def _lines_of(num: int, first: Compared) -> dict[str, Course]:
    lines = {
        "one trainer": first.one,
        "averaging": first.averaged[num],
        "synchronous data parallel": first.synchronous[num],
    }
    if num in INDEPENDENT:
        lines["independent, the best"] = first.independent[num]
    return lines


def data_rich(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Speed-ups of trainers that average, at as many seeds as there are rounds."""
    inputs, scalars, per_s = simulate(num)
    data = write_data(tmp, inputs, scalars, NOISE)
    seeds = [Compared(tmp, data, seed, num / SAMPLES) for seed in range(rounds)]
    told = f"{num:,} ICF samples with {NOISE:.0%} noise"
    rows = [Row("ICF samples simulated, scalars alone, one core", f"{per_s:,.0f}/s", "", "", "reported", "")]
    for trainers in AVERAGED:
        rows += _rows_of(trainers, seeds, told)
    draw({f"{trainers} trainers": _lines_of(trainers, seeds[0]) for trainers in AVERAGED}, told)
    costs = [of.averaged[4] for of in seeds]
    round_ms, step_ms = (
        1000 * statistics.median(getattr(of, key) for of in costs) for key in ("round_s", "step_s")
    )
    what = f"computing of a round of averaging, a model of {costs[0].num_parameters:,} parameters"
    shown_ms = f"{round_ms:.2f} ms; a step takes {step_ms:.2f} ms"
    return [*rows, Row(what, shown_ms, "", "", "reported", "")]


def others(tmp: Path, rounds: int, num: int) -> list[Row]:
    """The same without noise, and trainers that meet rarely."""
    inputs, scalars, _ = simulate(num)
    noisy = write_data(tmp / "with", inputs, scalars, NOISE)
    clean = write_data(tmp / "without", inputs, scalars, 0.0)
    runs = [Runs(tmp, seed, num / SAMPLES) for seed in range(rounds)]
    ones = [of.run(noisy, ONE) for of in runs]
    to_one = f"modelled time to the final loss of one, {num:,} ICF samples with {NOISE:.0%} noise"
    pairs = {
        f"4 averaging trainers, modelled time to the final loss of one, {num:,} ICF samples without noise": (
            [of.run(clean, CLEAN_ONE) for of in runs], [of.run(clean, CLEAN_AVERAGED) for of in runs],
        ),
        f"4 trainers that average every 100 steps (at the end every 5), {to_one}": (
            ones, [of.run(noisy, FAR_APART) for of in runs],
        ),
        f"a tournament of 4 trainers whose pairs merge every 100 steps, {to_one}": (
            ones, [of.run(noisy, MERGED) for of in runs],
        ),
    }  # fmt: skip
    return [_speed_row(what, *both, "≥ 1.7×") for what, both in pairs.items()]


def defaults(tmp: Path, rounds: int, num: int) -> list[Row]:
    """What two of the defaults gain."""
    inputs, scalars, _ = simulate(num)
    data = write_data(tmp, inputs, scalars, NOISE)
    runs = [Runs(tmp, seed, num / SAMPLES) for seed in range(rounds)]
    told = f"{num:,} ICF samples with {NOISE:.0%} noise"
    compared = {
        f"final loss of one trainer, inputs with mean 0 and standard deviation 1 against 0 to 1, {told}": (
            ONE, OFF_CENTRE,
        ),
        f"final loss of 8 averaging trainers, Adam's first moment as the rule says against 0.9, {told}": (
            AVERAGED[8], SHORT_MOMENTS,
        ),
    }  # fmt: skip
    courses = {
        what: [[of.run(data, recipe) for of in runs] for recipe in both] for what, both in compared.items()
    }
    return [_against(what, ours, other, "> 1×") for what, (ours, other) in courses.items()]
