"""One run of the SEIR model: writes result.json and curve.csv where it is started, and a line to stdout.

Plain Python, because a study starts this script once for each sample. README.md has the equations.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from itertools import pairwise
from math import log, sqrt
from pathlib import Path

POPULATION = 1_000_000.0
DAYS = 120
STEPS_PER_DAY = 4
State = tuple[float, float, float, float]  # susceptible, exposed, infectious, removed


def derivative(state: State, beta: float, sigma: float, gamma: float) -> State:
    """Kermack and McKendrick's equations with an exposed class; rates in 1/day."""
    s, e, i, _ = state
    infections, onsets, removals = beta * s * i / POPULATION, sigma * e, gamma * i
    return -infections, infections - onsets, onsets - removals, removals


def advance(state: State, h: float, rates: tuple[float, float, float]) -> State:
    """One step of the classical Runge-Kutta method."""
    k1 = derivative(state, *rates)
    k2 = derivative(_moved(state, k1, h / 2), *rates)
    k3 = derivative(_moved(state, k2, h / 2), *rates)
    k4 = derivative(_moved(state, k3, h), *rates)
    total = [a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True)]
    return _moved(state, total, h / 6)


def _moved(state: State, direction: Sequence[float], h: float) -> State:
    s, e, i, r = (x + h * d for x, d in zip(state, direction, strict=True))
    return s, e, i, r


def simulate(r0: float, latent_days: float, infectious_days: float, seeds: float) -> list[State]:
    """The state at the end of each day, from day 0."""
    rates = (r0 / infectious_days, 1 / latent_days, 1 / infectious_days)
    state: State = (POPULATION - seeds, seeds, 0.0, 0.0)
    days = [state]
    for _ in range(DAYS):
        for _ in range(STEPS_PER_DAY):
            state = advance(state, 1 / STEPS_PER_DAY, rates)
        days.append(state)
    return days


def new_cases(days: list[State]) -> list[float]:
    """People who became infectious on each day."""
    ever = [i + r for _, _, i, r in days]
    return [after - before for before, after in pairwise(ever)]


def misfit(cases: list[float], observed: list[float]) -> float:
    """Root mean square difference of log(1 + cases): a factor counts the same on small and on large days."""
    squares = [(log(1 + c) - log(1 + o)) ** 2 for c, o in zip(cases, observed, strict=True)]
    return sqrt(sum(squares) / len(squares))


def read_observed(path: Path) -> list[float]:
    with open(path, newline="") as file:
        return [float(row["cases"]) for row in csv.DictReader(file)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--r0", "--latent-days", "--infectious-days", "--seeds"):
        parser.add_argument(name, type=float, required=True)
    parser.add_argument("--observed", type=Path, required=True)
    args = parser.parse_args()

    days = simulate(args.r0, args.latent_days, args.infectious_days, args.seeds)
    cases = new_cases(days)
    peak = max(range(DAYS), key=cases.__getitem__)
    result = {
        "misfit": misfit(cases, read_observed(args.observed)),
        "peak": {"day": peak + 1, "cases": cases[peak]},
        "attack_rate": 1 - days[-1][0] / POPULATION,
    }
    Path("result.json").write_text(json.dumps(result) + "\n")
    with open("curve.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["day", "cases", "infectious"])
        writer.writerows([day + 1, cases[day], days[day + 1][2]] for day in range(DAYS))
    print(f"doubling time {doubling_time(args.r0, args.latent_days, args.infectious_days):.4f} days")


def doubling_time(r0: float, latent_days: float, infectious_days: float) -> float:
    """Of the early growth, ln 2 / r: r is the root of (r + sigma)(r + gamma) = sigma beta; needs r0 > 1."""
    sigma, gamma = 1 / latent_days, 1 / infectious_days
    growth = (-(sigma + gamma) + sqrt((sigma - gamma) ** 2 + 4 * sigma * gamma * r0)) / 2
    return log(2) / growth


if __name__ == "__main__":
    main()
