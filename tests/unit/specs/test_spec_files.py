"""The studies in specs/ are valid, and what they declare is what their codes produce."""

from __future__ import annotations

import subprocess
from pathlib import Path

import icf
import numpy as np
import pytest

from merlin.batch.contract import JobRequest
from merlin.batch.registry import SCHEDULERS
from merlin.plan.expand import make_plan
from merlin.plan.launch import Launchers
from merlin.spec.load import check_spec

SPECS = Path(__file__).parents[3] / "specs"
WORKERS = SPECS.parent / "workers"


@pytest.mark.parametrize("path", sorted(SPECS.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_the_spec_is_valid_without_warnings(path: Path) -> None:
    spec, diagnostics = check_spec(path)
    assert spec is not None
    assert diagnostics == []


def test_icf_collects_exactly_what_its_function_returns() -> None:
    spec, _ = check_spec(SPECS / "icf" / "icf.yaml")
    assert spec is not None and spec.document.merlin.samples is not None
    generate = spec.document.merlin.samples.generate
    assert generate is not None and generate.bounds is not None
    low, high = ({label: np.array([b[k]]) for label, b in generate.bounds.items()} for k in (0, 1))
    aggregate = spec.document.study[1].run.aggregate
    assert aggregate is not None
    for corner in (low, high):
        results = icf.simulate(corner, None)
        returned = {name: field for name, field in aggregate.fields.items() if field.expression is None}
        assert set(results) == set(returned)
        for name, field in returned.items():
            assert results[name].shape == (1, *field.shape)
            assert results[name].dtype == np.dtype(field.dtype)


def test_icf_train_makes_the_data_of_icf() -> None:
    plain, trained = (check_spec(SPECS / "icf" / name)[0] for name in ("icf.yaml", "icf_train.yaml"))
    assert plain is not None and trained is not None
    assert trained.document.study[:2] == plain.document.study
    assert trained.document.merlin == plain.document.merlin


@pytest.mark.parametrize("path", sorted((SPECS / "icf" / "train").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_trained_on_icf_is_selected_and_normalised_alike(path: Path) -> None:
    from merlin.train.config_file import load_config

    first = load_config(SPECS / "icf" / "train" / "autoencoder.yaml").config
    config = load_config(path).config
    assert (config.fields, config.normalise) == (first.fields, first.normalise)
    assert {*config.fields.inputs, *config.fields.scalars, *config.fields.images} <= {
        *icf.simulate({label: np.array([0.01]) for label in config.fields.inputs}, None),
        *config.fields.inputs,
    }


def test_only_the_examples_of_schedulers_have_a_launcher() -> None:
    with_one = {path for path in SPECS.rglob("*.yaml") if "LAUNCHER)" in path.read_text(encoding="utf-8")}
    assert with_one == set((SPECS / "schedulers").glob("*.yaml"))


@pytest.mark.parametrize("path", sorted((SPECS / "schedulers").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_launch_line_in_an_example_is_what_its_scheduler_gets(path: Path, tmp_path: Path) -> None:
    spec, _ = check_spec(path)
    assert spec is not None and spec.document.batch.type == path.stem
    plan = make_plan(
        spec,
        workspace=tmp_path / "s_20261123-120000",
        num_samples=4,
        samples_file="samples.npy",
        combos=(),
        created="",
        study_id="s",
        launchers=Launchers(schedulers=SCHEDULERS),
    )
    said = path.read_text(encoding="utf-8").partition("$(LAUNCHER) becomes: ")[2].partition("\n")[0]
    assert plan.instances[0].command.startswith(f"{said} python3 ")


def test_every_scheduler_has_an_example_and_a_job_script_for_workers() -> None:
    names = {scheduler.name for scheduler in SCHEDULERS.values() if scheduler.programs} - {"lsf-srun"}
    assert {path.stem for path in (SPECS / "schedulers").glob("*.yaml")} == names
    assert {path.stem for path in WORKERS.glob("*.sh")} == names


@pytest.mark.parametrize("path", sorted(WORKERS.glob("*.sh")), ids=lambda path: path.stem)
def test_a_job_script_for_workers_says_what_its_scheduler_reads(path: Path) -> None:
    request = JobRequest(
        name="merlin-workers",
        nodes=2,
        walltime_s=3600,
        is_exclusive=True,
        output="merlin-workers.out" if path.stem == "lsf" else "",  # or LSF sends it as a letter
        may_requeue=True,
    )
    text = path.read_text(encoding="utf-8")
    header = [line for line in text.splitlines() if line.startswith(SCHEDULERS[path.stem].prefix)]
    assert header == SCHEDULERS[path.stem].directives(request)
    assert text.startswith("\n".join(["#!/bin/bash", *header]))
    subprocess.run(["bash", "-n", path], check=True, timeout=60)
