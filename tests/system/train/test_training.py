"""`merlin train` as a person uses it: killed, stopped, resumed, with several trainers, and under torchrun.

Commands are forked from a process that has loaded torch, see forked_training.py, and so is torchrun; the program itself
plays in test_tournaments.py. Where what commands leave behind is tested, they are started as a shell would
(`from_shell`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import TRAINING_LIMIT_S, training_environment
from effort import repeats
from forked_training import ForkedTorchrun, ForkedTraining
from surrogate_data import arrays, make_surrogate_data
from train_run import last_checkpoint, state_digest
from waiting import wait_until

from merlin.train.checkpoint import best_checkpoint, read_checkpoint
from merlin.train.metrics_log import read_metrics

CONFIG = """
data: {data}
model: {{name: "tiny_models:Noisy"}}
fields: {{images: []}}
optimizer: {{lr: 0.01}}
training:
  {{steps: 200, batch_size: 32, validate_every: 50, checkpoint_every: 10, log_every: 10, threads: 1, device: cpu}}
tournament: {{strategy: none}}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(CONFIG.format(data=data))
    return path


Process = ForkedTraining | subprocess.Popen[str]


def from_shell(*argv: object) -> Process:
    command = [sys.executable, "-m", "merlin.cli", "train", *map(str, argv)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=training_environment(), **pipes, text=True)


def finish(process: Process, code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=TRAINING_LIMIT_S)
    assert process.returncode == code, err
    return out, err


def train(*argv: object, code: int = 0) -> tuple[str, str]:
    return finish(ForkedTraining(*argv), code)


def train_here(capsys: pytest.CaptureFixture[str], *argv: object, code: int) -> tuple[str, str]:
    """`merlin train` in this process, which has loaded everything already."""
    from merlin.cli.main import main

    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["train", *map(str, argv)])
    out, err = capsys.readouterr()
    assert end.value.code == code, err
    return out, err


def step_of(run: Path, trainer: int = 0) -> int:
    lines = read_metrics(run / "trainers" / str(trainer) / "metrics.jsonl")
    return max((line["step"] for line in lines), default=0)


def final_state(run: Path, trainer: int = 0) -> str:
    return state_digest(read_checkpoint(last_checkpoint(run / "trainers" / str(trainer) / "checkpoints")))


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "train.yaml").write_text(CONFIG.format(data=data))
    train(folder / "train.yaml", f"directory={folder / 'run'}")
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(repeats(1, 6)))
def test_a_run_killed_at_any_moment_ends_bit_by_bit_as_one_that_was_not(
    config, tmp_path, unbroken, seed
) -> None:
    rng, run = random.Random(seed), tmp_path / "run"
    for _ in range(2):
        process = ForkedTraining(config, f"directory={run}")
        goal = step_of(run) + rng.randrange(1, 80)
        wait_until(lambda: step_of(run) >= goal or process.poll() is not None)  # noqa: B023
        process.kill()
        process.communicate()
    train(run, "--trust-code")
    assert final_state(run) == final_state(unbroken)
    steps = [
        line["step"]
        for line in read_metrics(run / "trainers/0/metrics.jsonl")
        if line["kind"] == "validation"
    ]
    assert steps == list(range(50, 201, 50))


def test_a_run_that_is_asked_to_stop_writes_a_checkpoint_and_says_how_to_go_on(
    config, tmp_path, unbroken
) -> None:
    run, words = tmp_path / "run", (config, f"directory={tmp_path / 'run'}")
    for number, least, batches in ((signal.SIGTERM, 20, 25), (signal.SIGINT, 90, 75)):
        process = ForkedTraining(*words, HOLD_AFTER=batches)
        wait_until(lambda: step_of(run) >= least, process)  # noqa: B023
        process.send_signal(number)
        _, err = finish(process, 128 + number)
        assert f"stopped by {number.name}; resume with: merlin train {run} --trust-code" in err
        stopped_at = read_checkpoint(last_checkpoint(run / "trainers/0/checkpoints"))["step"]
        assert least <= stopped_at < 200
        words = (run, "--trust-code")
    train(run, "--trust-code")
    assert final_state(run) == final_state(unbroken)


def test_trainers_are_processes_with_shares_of_their_own_and_the_best_model_is_kept(config, tmp_path) -> None:
    run = tmp_path / "run"
    out, err = train(config, f"directory={run}", "tournament.trainers=2", "--json")
    report = json.loads(out)
    assert [t["outcome"] for t in report["trainers"]] == ["finished", "finished"]
    assert {line.split(":")[0] for line in err.splitlines() if line.startswith("trainer")} == {
        "trainer 0",
        "trainer 1",
    }
    values = [
        read_checkpoint(best_checkpoint(run / f"trainers/{k}/checkpoints"))["progress"]["best"]
        for k in (0, 1)
    ]
    assert report["best"]["value"] == min(values) and report["best"]["trainer"] == values.index(min(values))
    assert (run / "best" / "model.pt").is_file() and final_state(run, 0) != final_state(run, 1)


def test_a_trainer_that_fails_is_told_and_does_not_end_the_others(config, tmp_path) -> None:
    run = tmp_path / "run"
    words = ["tournament.trainers=2", f"directory={run}"]
    process = ForkedTraining(config, *words, HOLD_AFTER=25, HOLD_TRAINER=1)
    wait_until(lambda: min(step_of(run, 0), step_of(run, 1)) >= 20, process)
    os.kill(children_of(process.pid)[1], signal.SIGKILL)
    _, err = finish(process, 1)
    assert "trainer 1 failed; the end of its log:" in err and "ended by SIGKILL" in err
    assert read_checkpoint(last_checkpoint(run / "trainers/0/checkpoints"))["step"] == 200
    train(run, "--trust-code")
    assert read_checkpoint(last_checkpoint(run / "trainers/1/checkpoints"))["step"] == 200


def test_trainers_leave_when_the_command_is_killed(config, tmp_path) -> None:
    run = tmp_path / "run"
    process = from_shell(config, f"directory={run}", "tournament.trainers=2", "training.steps=1000000")
    # the line of a step is written before its checkpoint, and after the checkpoint of ten steps before
    wait_until(lambda: min(step_of(run, 0), step_of(run, 1)) >= 30, process)
    trainers = children_of(process.pid)
    assert len(trainers) == 2
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, trainers)), lambda: trainers)
    assert read_checkpoint(last_checkpoint(run / "trainers/0/checkpoints"))["step"] >= 20


def test_a_trainer_is_never_trained_by_two_processes(config, tmp_path) -> None:
    run = tmp_path / "run"
    process = ForkedTraining(config, f"directory={run}", "training.steps=1000000")
    wait_until(lambda: step_of(run) >= 10, process)
    _, err = train(run, "--trust-code", code=1)
    assert "another process trains in" in err
    process.kill()
    process.communicate()


def test_two_ranks_of_a_trainer_under_torchrun_share_its_batches(config, tmp_path) -> None:
    words = ["model.name=regressor", "model.width=16", "training.steps=60"]
    finish(ForkedTorchrun(tmp_path, config, *words, f"directory={tmp_path / 'two'}"))
    assert sorted(p.name for p in (tmp_path / "two" / "trainers").iterdir()) == ["0"]
    train(config, *words, f"directory={tmp_path / 'one'}")
    one, two = (
        read_checkpoint(last_checkpoint(tmp_path / name / "trainers/0/checkpoints"))
        for name in ("one", "two")
    )
    for name, value in one["trainer"]["model"].items():
        difference = (value - two["trainer"]["model"][name]).abs().max()
        assert difference < 1e-3, name  # the same gradients, summed in another order
    assert one["progress"]["metrics"]["loss"] == pytest.approx(two["progress"]["metrics"]["loss"], rel=1e-2)


def test_two_ranks_that_are_stopped_go_on_bit_by_bit(config, tmp_path) -> None:
    run, words = tmp_path / "run", ["tournament.ranks_per_trainer=2", "training.steps=100"]
    train(config, *words, f"directory={tmp_path / 'unbroken'}")
    process = ForkedTraining(config, *words, f"directory={run}", HOLD_AFTER=25)
    wait_until(lambda: step_of(run) >= 20, process)
    process.send_signal(signal.SIGTERM)
    finish(process, 128 + signal.SIGTERM)
    assert 20 <= read_checkpoint(last_checkpoint(run / "trainers/0/checkpoints"))["step"] < 100
    train(run, "--trust-code")
    assert final_state(run) == final_state(tmp_path / "unbroken")


def test_ranks_that_a_launcher_starts_meet_through_a_file(config, tmp_path) -> None:
    words = [
        config,
        f"output={tmp_path / 'runs'}",
        "tournament.trainers=2",
        "training.steps=20",
        "--under-launcher",
    ]
    processes = []
    for rank in range(2):
        names = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
        variables = {f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()}
        processes.append(ForkedTraining(*words, PMIX_NAMESPACE="job7", **variables))
    for process in processes:
        finish(process)
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert sorted(p.name for p in (run / "trainers").iterdir()) == ["0", "1"]
    assert not list((tmp_path / "runs").glob(".meeting*"))


def test_independent_jobs_each_train_one_trainer_of_a_run(config, tmp_path) -> None:
    words = [f"directory={tmp_path / 'run'}", "tournament.trainers=2", "training.steps=20"]
    for process in [ForkedTraining(config, *words, "--trainer", k) for k in (0, 1)]:
        finish(process)
    assert all(step_of(tmp_path / "run", k) == 20 for k in (0, 1))


def test_bad_input_is_explained_and_nothing_is_written(config, tmp_path, capsys) -> None:
    output = tmp_path / "runs"
    _, err = train(config, f"output={output}", "training.epoch=3", "fields.scalars=[enrgy]", code=2)
    assert "command line: training.epoch=3: error: unknown key 'epoch' in training" in err
    words = ["fields.scalars=[enrgy]", "splits.validation=valid"]
    _, err = train_here(capsys, config, f"output={output}", *words, code=2)
    assert "did you mean 'energy'?" in err and "2 errors; nothing was run" in err
    times = arrays(200)["time"]
    times[3] = float("nan")
    bad = make_surrogate_data(tmp_path / "bad", 200, time=times)
    _, err = train_here(capsys, config, f"output={output}", f"data={bad}", code=2)
    assert "'time' is NaN or infinite in 1 samples: 3" in err
    _, err = train_here(capsys, config, f"output={output}", f"data={tmp_path / 'nowhere'}", code=2)
    assert "there is no" in err
    assert not output.exists()


def test_check_says_what_would_be_trained(config, tmp_path, capsys) -> None:
    out, _ = train_here(capsys, config, f"output={tmp_path / 'runs'}", "--check", code=0)
    assert "scalars energy, radius, time" in out and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [[], ["--check"], ["--json"]])
def test_what_is_left_out_is_told(config, tmp_path, capsys, words) -> None:
    constant = make_surrogate_data(tmp_path / "constant", 200, d=np.full(200, 3.0))
    words = [*words, f"data={constant}", f"output={tmp_path / 'runs'}", "training.steps=1"]
    _, err = train_here(capsys, config, *words, code=0)
    assert "warning: 'd' is left out: it is the same in all samples" in err


def children_of(pid: int) -> list[int]:
    """In the order in which they were started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
