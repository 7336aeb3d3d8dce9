"""Tournaments between processes: over files and in one world, with several ranks, killed and resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import TRAINING_LIMIT_S, training_environment
from forked_training import ForkedTraining
from surrogate_data import make_surrogate_data
from tournament_trainers import Trainers, num_rounds, rounds_of
from train_run import last_checkpoint, prepare_run, state_digest
from waiting import wait_until

from merlin.train.checkpoint import read_checkpoint
from merlin.train.prepare import open_data
from merlin.train.run_directory import RunDirectory

WORDS = (
    "training={steps: 120, batch_size: 32, validate_every: 40, checkpoint_every: 23, keep: 1, threads: 1, device: cpu}",
    "tournament={trainers: 3, interval: 10, wait: 100000}",
)
TOGETHER = "tournament.transport=process_group"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


def begin(data: Path, path: Path, *words: str) -> RunDirectory:
    return prepare_run(data, path, *WORDS, *words).begin()


def last_state(run: RunDirectory, trainer: int) -> dict:
    return read_checkpoint(last_checkpoint(run.trainer(trainer).checkpoints))


def final_state(run: RunDirectory, trainer: int) -> str:
    return state_digest(last_state(run, trainer))


def play(run: RunDirectory, num: int = 3, **options) -> None:
    with Trainers(run, range(num), **options) as trainers:
        assert trainers.finish() == {k: {0} for k in range(num)}, [
            run.trainer(k).log.read_text() for k in range(num)
        ]


@contextmanager
def standing_still(trainers: Trainers) -> Iterator[None]:
    """What is done to all of them meanwhile happens to all at the same moment, as far as they can tell.

    For one that sees another go plays on without it after a quarter of a second.
    """

    def signal_all(number: int) -> None:
        for processes in trainers.processes.values():
            for process in processes:
                if process.poll() is None:
                    os.kill(process.pid, number)

    signal_all(signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(signal.SIGCONT)


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory) -> dict[str, RunDirectory]:
    folder, found = tmp_path_factory.mktemp("unbroken"), {}
    for name, words, together in (("files", (), False), ("process_group", (TOGETHER,), True)):
        found[name] = begin(data, folder / name, *words)
        play(found[name], together=together)
    return found


def test_both_transports_play_the_same_tournament(unbroken) -> None:
    for trainer in range(3):
        rounds = rounds_of(unbroken["files"], trainer)
        assert [line["round"] for line in rounds] == list(range(1, 12))
        assert rounds == rounds_of(unbroken["process_group"], trainer)
        assert final_state(unbroken["files"], trainer) == final_state(unbroken["process_group"], trainer)
    kept = [line.get("kept") for k in range(3) for line in rounds_of(unbroken["files"], k)]
    assert (
        kept.count("local") > 2 and kept.count("partner") > 2 and kept.count(None) == 11
    )  # one is left over
    assert all(line.get("partner_round", line["round"]) == line["round"] for line in rounds)


def test_trainers_of_one_world_make_as_many_steps_whatever_their_shares(data, tmp_path) -> None:
    length = "training={epochs: 2, batch_size: 16, threads: 1, device: cpu}"
    prepared = prepare_run(data, tmp_path / "run", *WORDS, length, TOGETHER)
    run = prepared.begin()
    steps = [2 * (size // 16) for size in open_data(run, prepared.config).share_sizes("train")]
    assert max(steps) - min(steps) > 0
    play(run, together=True)
    assert {last_state(run, k)["trainer"]["step"] for k in range(3)} == {min(steps)}


@pytest.mark.parametrize("transport", ["files", "process_group"])
def test_a_tournament_that_was_killed_ends_bit_by_bit_as_one_that_was_not(
    data, tmp_path, unbroken, transport
) -> None:
    together = transport == "process_group"
    run = begin(data, tmp_path / "run", f"tournament.transport={transport}")
    rng = random.Random(3)
    for goal in (3, 7):
        with Trainers(run, range(3), together=together) as trainers:
            first = rng.randrange(3)
            wait_until(lambda: num_rounds(run, first) >= goal)  # noqa: B023
            with standing_still(trainers):
                trainers.kill()
    play(run, together=together)
    assert [final_state(run, k) for k in range(3)] == [final_state(unbroken[transport], k) for k in range(3)]
    assert [rounds_of(run, k) for k in range(3)] == [rounds_of(unbroken[transport], k) for k in range(3)]


@pytest.mark.parametrize("transport", ["files", "process_group"])
def test_a_tournament_that_was_stopped_goes_on_bit_by_bit(data, tmp_path, unbroken, transport) -> None:
    together = transport == "process_group"
    run = begin(data, tmp_path / "run", f"tournament.transport={transport}")
    with Trainers(run, range(3), together=together, hold=dict.fromkeys(range(3), 45)) as trainers:
        wait_until(lambda: num_rounds(run, 1) >= 4)
        with standing_still(trainers):
            trainers.stop()
        assert trainers.finish() == {k: {75} for k in range(3)}
    play(run, together=together)
    assert [final_state(run, k) for k in range(3)] == [final_state(unbroken[transport], k) for k in range(3)]


def test_one_that_is_killed_does_not_stop_the_others_and_joins_again_later(data, tmp_path) -> None:
    run = begin(data, tmp_path / "run", "training.steps=150")
    with Trainers(run, range(3), hold={2: 35}) as trainers:
        wait_until(lambda: num_rounds(run, 2) >= 3)
        trainers.kill(2)
        assert trainers.finish() == {0: {0}, 1: {0}, 2: {-signal.SIGKILL}}
    dead_at = max(line["round"] for line in rounds_of(run, 2))
    for trainer, other in ((0, 1), (1, 0)):
        rounds = rounds_of(run, trainer)
        assert [line["round"] for line in rounds] == list(range(1, 15))
        assert {line["partner"] for line in rounds if line["round"] > dead_at + 2} == {
            other
        }  # nobody else is left
    with Trainers(run, [2]) as trainers:
        assert trainers.finish() == {2: {0}}
    late = [line for line in rounds_of(run, 2) if line["round"] > dead_at + 1]
    assert all(line["partner_round"] >= line["round"] for line in late if "kept" in line)
    assert {line["round"] for line in rounds_of(run, 2)} == set(range(1, 15))


def test_one_that_joins_late_blocks_nobody(data, tmp_path) -> None:
    run = begin(data, tmp_path / "run", "tournament.trainers=2", "training.steps=70")
    with Trainers(run, [0]) as trainers:
        assert trainers.finish() == {0: {0}}
    assert all(line["partner"] is None for line in rounds_of(run, 0))
    with Trainers(run, [1]) as trainers:
        assert trainers.finish() == {1: {0}}
    assert {(line["partner"], line["partner_round"]) for line in rounds_of(run, 1)} == {(0, 6)}


@pytest.mark.parametrize("together", [False, True], ids=["files", "process_group"])
def test_ranks_that_share_a_trainers_batches_play_as_one(data, tmp_path, together) -> None:
    words = [
        "training.steps=40",
        "tournament.trainers=2",
        "tournament.ranks_per_trainer=2",
        "model.name=regressor",
    ]
    words += ["model.width=8", f"tournament.transport={'process_group' if together else 'files'}"]
    run = begin(data, tmp_path / "run", *words)
    play(run, 2, ranks=2, together=together)
    for trainer, other in ((0, 1), (1, 0)):
        rounds = rounds_of(run, trainer)
        assert [line["partner"] for line in rounds] == [other] * 3
        assert all("kept" in line for line in rounds)


STRATEGIES = {
    "truncation": (),
    "regularised_evolution": (),
    "random_pairwise": ("tournament.merge=true",),
    "averaging": ("tournament.interval_end=3", "training.checkpoint_every=25"),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_is_the_same_over_both_transports_and_over_a_kill(data, tmp_path, strategy) -> None:
    words = [f"tournament.strategy={strategy}", "training.steps=70", *STRATEGIES[strategy]]
    goal = 1 if strategy == "averaging" else 2  # rounds that are told after the first checkpoint
    unbroken, files = begin(data, tmp_path / "unbroken", *words), begin(data, tmp_path / "files", *words)
    group = begin(data, tmp_path / "group", *words, TOGETHER)
    play(unbroken)
    for run, together in ((files, False), (group, True)):
        with Trainers(run, range(3), together=together) as trainers:
            wait_until(lambda: num_rounds(run, 1) >= goal)  # noqa: B023
            with standing_still(trainers):
                trainers.kill()
        play(run, together=together)
        assert [rounds_of(run, k) for k in range(3)] == [rounds_of(unbroken, k) for k in range(3)]
        assert [final_state(run, k) for k in range(3)] == [final_state(unbroken, k) for k in range(3)]
    kept = [
        line for k in range(3) for line in rounds_of(unbroken, k) if line.get("kept") in ("partner", "merged")
    ]
    if strategy in ("truncation", "regularised_evolution"):
        assert kept and all("lr" in line["mutated"] for line in kept)
    else:
        assert "merged" in {line["kept"] for line in kept}
    if strategy == "averaging":
        assert {tuple(line["partners"]) for line in kept} == {(1, 2), (0, 2), (0, 1)}
        weights = {state_digest(last_state(unbroken, k)["trainer"]["optimizers"]) for k in range(3)}
        assert len(weights) == 1 and kept[-1]["step"] == 70  # a run ends with the mean of all


WIDTHS = (
    "tournament.strategy=regularised_evolution",
    "tournament.mutation.width=2",
    "training.ema=0.5",
    "model={name: regressor, width: 8}",
)


def test_widths_are_the_same_over_both_transports_and_over_a_kill(data, tmp_path) -> None:
    words = [*WIDTHS, "training.steps=80"]
    runs = [begin(data, tmp_path / "files", *words), begin(data, tmp_path / "group", *words, TOGETHER)]
    with Trainers(runs[0], range(3)) as trainers:
        wait_until(lambda: num_rounds(runs[0], 2) >= 4)
        with standing_still(trainers):
            trainers.kill()
    for run, together in zip(runs, (False, True), strict=True):
        play(run, together=together)
    assert [rounds_of(runs[0], k) for k in range(3)] == [rounds_of(runs[1], k) for k in range(3)]
    assert [final_state(runs[0], k) for k in range(3)] == [final_state(runs[1], k) for k in range(3)]
    copies = [line for k in range(3) for line in rounds_of(runs[0], k) if line["kept"] == "partner"]
    assert len({line["capacity"] for line in copies}) > 3


def test_ranks_of_a_trainer_change_their_width_together(data, tmp_path) -> None:
    words = [*WIDTHS, "training.steps=60", "tournament.trainers=2", "tournament.ranks_per_trainer=2"]
    unbroken, broken = (begin(data, tmp_path / name, *words) for name in ("unbroken", "broken"))
    play(unbroken, 2, ranks=2)
    with Trainers(broken, range(2), ranks=2) as trainers:
        wait_until(lambda: num_rounds(broken, 1) >= 3)
        with standing_still(trainers):
            trainers.kill()
    play(broken, 2, ranks=2)
    assert [final_state(broken, k) for k in range(2)] == [final_state(unbroken, k) for k in range(2)]
    assert any("capacity" in line for k in range(2) for line in rounds_of(broken, k))


def written(data: Path, folder: Path, **tournament: object) -> Path:
    config = {"data": str(data), "directory": str(folder / "run"), "fields": {"images": []}}
    config["model"] = {"name": "regressor", "width": 8}
    config["training"] = {"steps": 40, "batch_size": 32, "threads": 1, "device": "cpu"}
    config["tournament"] = {"trainers": 2, "interval": 10, "wait": 100000, **tournament}
    path = folder / "train.yaml"
    path.write_text(json.dumps(config))
    return path


def test_merlin_train_plays_a_tournament_over_files(data, tmp_path) -> None:
    process = ForkedTraining(written(data, tmp_path), "--json")
    out, err = process.communicate(TRAINING_LIMIT_S)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert [(t["report"]["round"], t["outcome"]) for t in told["trainers"]] == [(3, "finished")] * 2
    run = RunDirectory(tmp_path / "run")
    won = [sum(line["kept"] == "local" for line in rounds_of(run, k)) for k in (0, 1)]
    assert [t["report"]["wins"] for t in told["trainers"]] == won


def test_torchrun_plays_a_tournament_in_one_world(data, tmp_path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [*launcher, "-m", "merlin.cli", "train", written(data, tmp_path, transport="process_group")]
    env = training_environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TRAINING_LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert [len(rounds_of(RunDirectory(tmp_path / "run"), k)) for k in (0, 1)] == [3, 3]
