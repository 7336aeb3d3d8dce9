"""Write observed.csv: synthetic case counts from seir.py's model and seeded reporting noise. No real data."""

from __future__ import annotations

import csv
import random
from math import exp
from pathlib import Path

import seir

TRUTH = {"r0": 2.6, "latent_days": 4.0, "infectious_days": 6.0, "seeds": 40.0}
NOISE = 0.15  # standard deviation of log(reported / true)


def main() -> None:
    noise = random.Random(19)
    cases = seir.new_cases(seir.simulate(**TRUTH))
    with open(Path(__file__).with_name("observed.csv"), "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["day", "cases"])
        writer.writerows([day, round(c * exp(noise.gauss(0, NOISE)))] for day, c in enumerate(cases, start=1))


if __name__ == "__main__":
    main()
