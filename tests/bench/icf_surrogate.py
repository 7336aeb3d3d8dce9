"""The ICF study's surrogate against a plain regressor, both from the same samples and as often: errors per quantity."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from measure import MERLIN, fresh, only_workspace, run
from report import Row

ICF = Path(__file__).resolve().parents[2] / "specs" / "icf"
AUTOENCODER_EPOCHS = 12
EPOCHS = 16  # of the tournament, which keeps a tenth of the samples for its rounds


def surrogate(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One run of each, with half as much training again as in `make demo`; whatever the number of rounds."""
    folder = fresh(tmp / "icf")
    epochs = [f"AUTOENCODER_EPOCHS={AUTOENCODER_EPOCHS}", f"EPOCHS={EPOCHS}"]
    options = ["--vars", f"N_SAMPLES={num}", f"OUTPUT_PATH={folder}", *epochs, "--local"]
    # the spec's steps call merlin by its name
    path = f"{Path(MERLIN).parent}{os.pathsep}{os.environ['PATH']}"
    run([MERLIN, "run", str(ICF / "icf_train.yaml"), *options], folder, {**os.environ, "PATH": path})
    workspace = only_workspace(folder)
    plain = tmp / "regressor"
    config = [f"data={workspace / 'collect'}", f"directory={plain}"]
    config.append(f"training.epochs={AUTOENCODER_EPOCHS + EPOCHS}")
    run([MERLIN, "train", str(ICF / "train" / "regressor.yaml"), *config], folder)
    run([MERLIN, "evaluate", str(plain)], folder)
    ours, other = _errors(workspace / "tournament" / "run"), _errors(plain)
    rows = []
    for name in ours:
        what = f"ICF surrogate ({num:,} samples), error of {name}, against a plain regressor at equal visits"
        times = f"{other[name] / ours[name]:.2f}×"
        rows.append(Row(what, f"{ours[name]:.2%}", f"{other[name]:.2%}", times, "reported", ""))
    return rows


def _errors(directory: Path) -> dict[str, float]:
    """Root mean square errors of scalars by their standard deviations; of images and their structure, the relative L2
    norm of the error and the lack of structural similarity."""
    found: dict[str, Any] = json.loads((directory / "evaluation.json").read_text())
    scalars = {name: of["rmse"] / of["std"] for name, of in found["scalars"].items()}
    images = {}
    for name, of in found["images"].items():
        images[f"{name} (relative L2)"] = of["relative_l2"]
        images[f"{name} (1 - SSIM)"] = 1.0 - of["ssim"]
    return {**{f"{name} (RMSE / std)": value for name, value in scalars.items()}, **images}
