from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import TrainingError
from merlin.train.results.training_page import thin_out, training_page


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has begun, without a trainer."""
    facts = {
        "format": "merlin-run",
        "version": 1,
        "created": "2026-01-01",
        "data_path": "/data",
        "num_parameters": 7,
    }
    (tmp_path / "run.json").write_text(json.dumps(facts))
    return tmp_path


def write(run: Path, trainer: int, *lines: dict[str, Any]) -> Path:
    directory = run / "trainers" / str(trainer)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return directory


def trained(step: int, loss: float | None) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "time_s": step / 10,
        "samples_per_s": 100.0,
        "values": {"loss": loss, "lr/main": 1},
    }


END = {"kind": "end", "step": 20, "state": "finished", "reason": "", "values": {}}


def test_curves_rounds_and_lineage_of_every_trainer(run: Path) -> None:
    assert training_page(run).state == "new"
    valid = {"kind": "validation", "step": 20, "best": True, "values": {"mse": 0.5}}
    write(run, 0, trained(10, 2.0), trained(20, None), valid, END)
    played = {"kind": "round", "step": 10, "round": 1, "partner": 0, "kept": "partner", "values": {}}
    write(run, 1, trained(10, 1.5), played, END)
    (run / "best").mkdir()
    (run / "best" / "best.json").write_text(json.dumps({"trainer": 0, "value": 0.5}))
    page = training_page(run)
    assert (page.state, page.created, page.data_path, page.num_parameters) == (
        "finished",
        "2026-01-01",
        "/data",
        7,
    )
    assert [(curve.trainer, curve.steps, curve.values) for curve in page.losses["loss"]] == [
        (0, (10, 20), (2.0, None)),
        (1, (10,), (1.5,)),
    ]
    assert set(page.losses) == {"loss"}
    assert page.validation["mse"][0].values == (0.5,)
    assert [(each.number, each.trainer, each.partner, each.kept) for each in page.rounds] == [
        (1, 1, 0, "partner")
    ]
    assert page.origins == {0: [0, 0], 1: [1, 0]}
    assert page.best == {"trainer": 0, "value": 0.5}
    assert [(line.trainer, line.step, line.samples_per_s) for line in page.trainers] == [
        (0, 20, 100.0),
        (1, 20, 100.0),
    ]


def test_what_a_trainer_writes_meanwhile_is_seen(run: Path) -> None:
    write(run, 0, trained(10, 2.0))
    assert training_page(run).losses["loss"][0].steps == (10,)
    write(run, 0, trained(20, 1.0))
    assert training_page(run).losses["loss"][0].steps == (10, 20)


def test_a_trainer_runs_as_long_as_it_holds_its_lock_and_was_killed_if_nobody_does(run: Path) -> None:
    directory = write(run, 0, trained(10, 2.0))
    write(run, 1, END)
    assert training_page(run).state == "killed"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"pid {os.getpid()} on {os.uname().nodename}")
        lock.flush()
        page = training_page(run)
        assert (page.state, [line.state for line in page.trainers]) == ("running", ["running", "finished"])
    assert training_page(run).state == "killed"


def test_a_trainer_on_another_host_is_believed_as_long_as_it_writes(run: Path) -> None:
    directory = write(run, 0, trained(10, 2.0))
    (directory / "lock").write_text("pid 17 on elsewhere")
    assert training_page(run).state == "running"
    os.utime(directory / "metrics.jsonl", (1000.0, 1000.0))
    assert training_page(run).state == "silent"


def test_what_is_no_run_or_damaged_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"has no run\.json"):
        training_page(tmp_path / "nothing")
    (run / "run.json").write_text("{")
    with pytest.raises(TrainingError, match="cannot be read"):
        training_page(run)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300), st.integers(2, 60))
def test_a_thinned_curve_keeps_its_extremes_and_where_it_broke(values: list[float], most: int) -> None:
    array = np.array(values)
    chosen = thin_out(array, most)
    assert len(chosen) <= most
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    finite = array[np.isfinite(array)]
    if len(values) <= most:
        assert chosen.tolist() == list(range(len(values)))
    elif len(finite) == len(array):
        assert (array[chosen].min(), array[chosen].max()) == (finite.min(), finite.max())
    else:
        assert not np.isfinite(array[chosen]).all()


def test_a_page_needs_no_torch(run: Path) -> None:
    write(run, 0, trained(10, 2.0))
    code = (
        "import sys; from pathlib import Path; from merlin.train.results.training_page import training_page;"
        f"training_page(Path({str(run)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
