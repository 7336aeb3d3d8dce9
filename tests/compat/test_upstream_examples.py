"""Upstream's own example specs run unmodified: the same directories, the same files, the same results."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from effort import IS_LONG

pytestmark = pytest.mark.network


def task_files(directory: str, name: str, *extra: str, finished: bool = True) -> set[str]:
    """What upstream leaves in the directory of one task."""
    files = {f"{directory}/{name}.{end}" for end in ("sh", "out", "err")} | {
        f"{directory}/{e}" for e in extra
    }
    return files | ({f"{directory}/MERLIN_FINISHED"} if finished else set())


def provenance(workspace: Path, name: str) -> set[str]:
    return {
        p
        for p in ("orig", "partial", "expanded")
        if (workspace / "merlin_info" / f"{name}.{p}.yaml").is_file()
    }


def test_hello_runs_every_parameter_combination(example: Callable) -> None:
    hello = example("hello")
    hello.run("hello.yaml")
    (workspace,) = hello.workspaces()
    first = {"GREET.hello.WORLD.world": "hello, world!\n", "GREET.hola.WORLD.mundo": "hola, mundo!\n"}
    expected = task_files("step_2", "step_2")
    for label, text in first.items():
        expected |= task_files(f"step_1/{label}", f"step_1_{label}")
        assert (workspace / "step_1" / label / f"step_1_{label}.out").read_text() == text
    assert hello.files(workspace) == expected
    assert (workspace / "step_2/step_2.sh").read_text().startswith("#!/usr/bin/env python3\n")
    assert provenance(workspace, "hello") == {"orig", "partial", "expanded"}


def test_hello_samples_makes_one_directory_per_sample(example: Callable) -> None:
    hello = example("hello")
    hello.run("hello_samples.yaml", "--vars", "N_SAMPLES=30")
    (workspace,) = hello.workspaces()
    names = (workspace / "merlin_info/samples.csv").read_text().split()
    assert len(names) == 30
    expected = task_files("step_2", "step_2")
    for label in ("hello", "hola"):
        for i, name in enumerate(names):
            directory = f"step_1/GREET.{label}/{i // 25:02d}/{i % 25:02d}"
            expected |= task_files(directory, f"step_1_GREET.{label}")
            out = workspace / directory / f"step_1_GREET.{label}.out"
            assert out.read_text() == f"{label}, {name}!\n"
    assert hello.files(workspace) == expected
    for name in ("cmd.sh", "cmd.out", "cmd.err"):
        assert (workspace / "merlin_info" / name).is_file()


def test_simple_chain_pairs_each_step_with_its_own_predecessor(example: Callable) -> None:
    chain = example("simple_chain")
    chain.run("simple_chain.yaml")
    (workspace,) = chain.workspaces("studies")
    expected = set()
    for label in ("X2.0.5", "X2.0.75"):
        expected |= task_files(f"step1/{label}", f"step1_{label}") | task_files(
            f"step2/{label}", f"step2_{label}"
        )
    assert chain.files(workspace) == expected
    for label in ("X2.0.5", "X2.0.75"):
        listing = (workspace / f"step2/{label}/step2_{label}.out").read_text().split()
        assert f"step1_{label}.sh" in listing
        assert not any(name.startswith("STEP_ONE_RUNNING") for name in listing)


# nearly the same spec twice; `make soak` runs each in both ways
FEATURE_DEMOS = [("feature_demo", "local"), ("remote_feature_demo", "workers")]
if IS_LONG:
    FEATURE_DEMOS += [("feature_demo", "workers"), ("remote_feature_demo", "local")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "where"), FEATURE_DEMOS)
def test_feature_demo_learns_and_only_the_python2_step_fails(
    example: Callable, name: str, where: str, request: pytest.FixtureRequest
) -> None:
    demo = example(name)
    if where == "local":
        done = demo.run(f"{name}.yaml", check=False)
    else:
        url = request.getfixturevalue("any_redis").url
        done = demo.run_on_workers(f"{name}.yaml", url, check=False)
    (workspace,) = demo.workspaces("studies")
    out = f"{done.stdout}\n{done.stderr}"
    for i in range(10):
        assert (workspace / f"hello/X2.0.5/{i:02d}/hello_world_output_{i}.json").is_file(), out
    assert len(json.loads((workspace / "collect/X2.0.5/results.json").read_text())) == 10
    assert (workspace / "learn/X2.0.5/random_forest_reg.pkl").is_file(), out
    assert (workspace / "predict/N_NEW.10.X2.0.5/prediction_10.npy").is_file(), out
    assert (workspace / "verify/N_NEW.10.X2.0.5/FINISHED").is_file(), out
    python3 = workspace / "python3_hello/X2.0.5"
    assert (python3 / "python3_hello_X2.0.5.out").read_text().endswith("Variable X2 is 0.5\n")
    python2_ran = (workspace / "python2_hello/X2.0.5/MERLIN_FINISHED").is_file()
    assert done.returncode == (0 if python2_ran else 1), out
    steps = {
        "hello",
        "collect",
        "translate",
        "learn",
        "make_new_samples",
        "predict",
        "verify",
        "python3_hello",
    }
    if name == "remote_feature_demo":
        steps.add("stop_workers")
    for step in steps:
        directories = [p.parent for p in (workspace / step).rglob("*.sh")]
        assert directories and all((d / "MERLIN_FINISHED").is_file() for d in directories), (step, out)


def test_restart_reruns_cmd_or_the_restart_command(example: Callable) -> None:
    restart = example("restart")
    restart.run("restart.yaml")
    (workspace,) = restart.workspaces("studies")
    expected = task_files("build", "build") | task_files("data", "data", "trs_kvs.out")
    for i in range(10):
        expected |= task_files(f"runs/{i:02d}", "runs", "restarted")
        said_before = (f".try1/runs_rt.{end}" for end in ("out", "err"))  # upstream appends to one file
        expected |= task_files(f"runs_rt/{i:02d}", "runs_rt", "retried", *said_before)
        again = (f"runs_rs.restart.{end}" for end in ("sh", "out", "err"))
        expected |= task_files(f"runs_rs/{i:02d}", "runs_rs", *again)
    assert restart.files(workspace) == expected
    v1 = np.load(workspace / "merlin_info/samples.npy")[3, 0]
    assert str(v1) in (workspace / "runs_rs/03/runs_rs.restart.out").read_text()


@pytest.mark.slow
def test_restart_delay_waits_as_long_as_the_spec_says(example: Callable) -> None:
    delayed = example("restart_delay")
    delayed.run("restart_delay.yaml")
    (workspace,) = delayed.workspaces("studies")
    for step, delay_s in (("run_10", 10), ("runs_rt_30", 30), ("runs_rs_1", 1)):
        for i in range(10):
            stamps = (workspace / f"{step}/{i:02d}/timings.txt").read_text().split("\n")
            assert len(stamps) == 3, (step, i, stamps)
            first, second = (datetime.strptime(s, "%I:%M:%S %p") for s in stamps[:2])
            assert (second - first).total_seconds() % 86400 >= delay_s - 1  # the stamps are whole seconds


def test_null_spec_runs_though_its_batch_type_is_slurm(example: Callable) -> None:
    null = example("null_spec")
    null.run("null_spec.yaml", "--vars", "TIME=0", "N_SAMPLES=12")
    (workspace,) = null.workspaces()
    expected = task_files("verify", "verify")
    for i in range(12):
        expected |= task_files(f"null_step/{i:02d}", "null_step")
    assert null.files(workspace) == expected


@pytest.mark.slow
def test_null_chain_starts_the_next_study_from_inside_a_step(example: Callable) -> None:
    null = example("null_spec")
    null.run("null_chain.yaml", "--vars", "TIME=0", "MAX_SAMPLES=100")
    sizes = [len(list(w.glob("null_step/**/null_step.out"))) for w in null.workspaces()]
    assert sorted(sizes) == [1, 10, 100]


@pytest.mark.slow
def test_iterative_demo_runs_with_its_variables_overridden(example: Callable) -> None:
    demo = example("iterative_demo")
    demo.run("iterative_demo.yaml", "--vars", "PYTHON=python3", "MAX_ITER=1", "POST_NPROCS=2")
    (workspace,) = demo.workspaces("name_studies")
    assert len(list(workspace.glob("sample_names/**/name_sample.out"))) == 200
    results = demo.folder / "name_studies/iter_outputs"
    assert {p.name for p in results.glob("*.json")} == {"iter_1_results.json"}
    assert (results / "cumulative_results.png").is_file()


@pytest.mark.slow
def test_iterative_demo_starts_its_own_next_iteration(example: Callable) -> None:
    demo = example("iterative_demo")
    spec = (
        demo.folder / "iterative_demo.yaml"
    )  # the nested run passes only ITER on, so the user edits the rest
    text = spec.read_text().replace("<INSERT_PATH_TO_VIRTUALENV_PYTHON>", "python3")
    spec.write_text(text.replace("MAX_ITER: 10", "MAX_ITER: 2").replace("POST_NPROCS: 36", "POST_NPROCS: 2"))
    demo.run("iterative_demo.yaml")
    assert len(demo.workspaces("name_studies")) == 2
    results = demo.folder / "name_studies/iter_outputs"
    assert {p.name for p in results.glob("*.json")} == {"iter_1_results.json", "iter_2_results.json"}
