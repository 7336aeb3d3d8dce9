"""Rank the samples of a collected calibration study by misfit; print the best and write best_fits.csv.

python best_fits.py DATASET [NUMBER]
"""

from __future__ import annotations

import csv
import sys

try:
    import numpy as np

    import merlin
except ImportError as e:
    sys.exit(
        f"{sys.executable}: {e}; name the Python that Merlin is installed in: --vars PYTHON=…/bin/python"
    )


def main() -> None:
    ensemble = merlin.open_shards(sys.argv[1])
    number = min(int(sys.argv[2]) if len(sys.argv) > 2 else 10, len(ensemble))
    inputs = {
        label: np.asarray(ensemble.inputs[label][:]) for label in ("R0", "LATENT", "INFECTIOUS", "SEEDS")
    }
    columns = inputs | {
        name: np.asarray(ensemble[name][:]) for name in ("misfit", "peak_day", "attack_rate", "doubling_time")
    }
    best = np.argsort(columns["misfit"], kind="stable")[:number]
    print("  ".join(f"{name:>13}" for name in columns))
    with open("best_fits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in best:
            values = [float(column[row]) for column in columns.values()]
            writer.writerow(values)
            print("  ".join(f"{value:13.4g}" for value in values))
    print("\nmean and standard deviation of the inputs over these samples:")
    for label, column in inputs.items():
        print(f"{label:>13}  {column[best].mean():9.4g} ± {column[best].std():.2g}")


if __name__ == "__main__":
    main()
