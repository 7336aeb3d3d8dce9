"""The epidemic model of specs/covid."""

from __future__ import annotations

import json
import subprocess
import sys
from math import log
from pathlib import Path

import make_observed
import pytest
import seir

SPECS = Path(__file__).parents[3] / "specs" / "covid"

ARGUMENTS = ["--r0", "2.6", "--latent-days", "4", "--infectious-days", "6", "--seeds", "40"]


def test_people_are_neither_made_nor_lost() -> None:
    for state in seir.simulate(3.0, 3.0, 5.0, 10.0):
        assert sum(state) == pytest.approx(seir.POPULATION, rel=1e-12)
        assert min(state) >= 0


def test_an_epidemic_below_threshold_dies_out() -> None:
    assert seir.simulate(0.5, 3.0, 5.0, 1000.0)[-1][2] < 10


def test_the_final_size_solves_the_final_size_equation() -> None:
    s_end = seir.simulate(3.5, 2.0, 3.0, 1.0)[-1][0] / seir.POPULATION
    assert log(s_end) == pytest.approx(-3.5 * (1 - s_end), rel=1e-4)


def test_early_growth_doubles_in_the_doubling_time() -> None:
    cases = seir.new_cases(seir.simulate(2.0, 4.0, 6.0, 0.001))
    assert log(2) / (log(cases[60] / cases[40]) / 20) == pytest.approx(
        seir.doubling_time(2.0, 4.0, 6.0), rel=1e-3
    )


def test_smaller_steps_change_nothing_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = seir.new_cases(seir.simulate(4.0, 2.0, 3.0, 200.0))
    monkeypatch.setattr(seir, "STEPS_PER_DAY", 40)
    fine = seir.new_cases(seir.simulate(4.0, 2.0, 3.0, 200.0))
    assert coarse == pytest.approx(fine, rel=1e-4, abs=1e-3)


def test_the_true_rates_fit_the_synthetic_counts_to_their_noise() -> None:
    observed = seir.read_observed(SPECS / "observed.csv")
    truth = seir.new_cases(seir.simulate(**make_observed.TRUTH))
    off = seir.new_cases(seir.simulate(**{**make_observed.TRUTH, "r0": 2.0}))
    assert seir.misfit(truth, observed) < 1.2 * make_observed.NOISE < seir.misfit(off, observed)


def test_the_script_writes_its_json_its_csv_and_its_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SPECS / "seir.py"), *ARGUMENTS, "--observed", str(SPECS / "observed.csv")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["attack_rate"] == pytest.approx(0.9, abs=0.1)
    assert set(result["peak"]) == {"day", "cases"}
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 1 + seir.DAYS
    assert done.stdout.startswith("doubling time ")
