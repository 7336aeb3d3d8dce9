"""The small parts of training: rates, averages, who is which rank, lines of metrics, what displays say."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import effort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_processes import run_on_ranks, train_with_an_infinite_loss
from surrogate_data import make_surrogate_data
from train_events import losses
from train_run import last_checkpoint, prepare_run, state_digest, train_run

from merlin.cli.train_display import TrainLines
from merlin.errors import MerlinError, TrainingError
from merlin.train.checkpoint import read_checkpoint
from merlin.train.config import Optimizer, Schedule
from merlin.train.events import RunEnded, StopRequest
from merlin.train.metrics_log import MetricsLog, read_lines, read_metrics
from merlin.train.optim import MovingAverage, lr_factor, make_optimizer
from merlin.train.parallel import rendezvous
from merlin.train.parallel.rendezvous import Rendezvous
from merlin.train.parallel.world import World, choose_device
from merlin.train.progress import Judge, LoopProgress
from merlin.train.reports import Note, Report, Silent, from_line
from merlin.train.trainer import Trainer
from merlin.train.whole_run import TrainRequest, train_as_rank


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


def test_learning_rates_warm_up_and_then_follow_their_schedule() -> None:
    cosine = Schedule(name="cosine", warmup_steps=4, final=0.1)
    rates = [lr_factor(cosine, step, 104) for step in range(104)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True) and rates[-1] == pytest.approx(0.1, abs=1e-3)
    assert rates[54] == pytest.approx(0.55, abs=1e-9)
    step = Schedule(name="step", every=10, gamma=0.5)
    assert [lr_factor(step, n, 100) for n in (0, 9, 10, 25)] == [1.0, 1.0, 0.5, 0.25]
    assert lr_factor(Schedule(), 7, 8) == 1.0


@given(
    st.sampled_from(["constant", "cosine", "step"]),
    st.integers(0, 50),
    st.integers(0, 300),
    st.integers(1, 200),
)
def test_learning_rates_are_positive_and_at_most_what_was_asked_for(name, warmup, step, num_steps) -> None:
    assert 0.0 <= lr_factor(Schedule(name=name, warmup_steps=warmup), step, num_steps) <= 1.0


def test_the_average_follows_the_weights_and_lends_itself() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    average = MovingAverage([("w", weight)], decay=0.75)
    with torch.no_grad():
        weight.fill_(8.0)
    average.update()
    assert average.state_dict()["w"].tolist() == [2.0] * 3
    with average.applied():
        assert weight.tolist() == [2.0] * 3
    assert weight.tolist() == [8.0] * 3 and average.state_dict()["w"].tolist() == [2.0] * 3


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_first_step_that_is_skipped_leaves_nothing_in_the_momentum(is_loaded) -> None:
    """The way of a GPU, on the CPU: the optimiser's kernel skips the step."""
    skipped, plain = (torch.nn.Parameter(torch.ones(1000)) for _ in range(2))
    config = Optimizer(name="sgd", lr=0.5, momentum=0.9, weight_decay=0.1)
    one, other = (make_optimizer([weights], config, "model") for weights in (skipped, plain))
    if is_loaded:  # what earlier versions have written before the first step
        one.load_state_dict({**one.state_dict(), "state": {}})
    for bad in (True, False, False):
        skipped.grad, plain.grad = torch.full((1000,), 2.0), torch.full((1000,), 2.0)
        one.grad_scale, one.found_inf = None, torch.tensor(float(bad))
        one.step()
        if not bad:
            other.step()
    assert torch.equal(skipped, plain) and plain[0] < 0
    assert torch.equal(one.state[skipped]["momentum_buffer"], other.state[plain]["momentum_buffer"])


SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "2",
}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "4,3"},
            World(5, 7, 1, 3, "9-2"),
        ),
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
            World(5, 8, 1, 4, "9-2"),
        ),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "8", "SLURM_RESTART_COUNT": "1"}, World(5, 8, 1, 8, "9-2-1")),
        ({**SLURM, "SLURM_NTASKS": "8"}, None),  # a batch script, not a step
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, None),
        (
            {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_ID": "f7"},
            World(1, 2, 1, 2, "f7"),
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, World(0, 2, 0, 2, "job")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PBS_JOBID": "7.host"}, World(1, 2, 0, 2, "7.host")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PBS_JOBID": "7", "PALS_APID": "a"}, World(1, 2, 0, 2, "7-a")),
        ({}, None),
    ],
)
def test_launchers_say_which_rank_a_process_is(env, expected) -> None:
    assert World.of_launcher(env) == expected


def test_ranks_find_each_other_though_an_earlier_launch_has_left_its_address(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "CONNECT_S", 0.5)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    with socket.create_server(("localhost", 0)) as gone, ThreadPoolExecutor(1) as pool:
        (tmp_path / ".meeting-j").write_text(f"localhost {gone.getsockname()[1]}")
        second = pool.submit(Rendezvous.join, World(1, 2, job="j"), tmp_path, {})
        gone.accept()[0].close()  # now it has read the old address
        gone.close()
        first = Rendezvous.join(World(0, 2, job="j"), tmp_path, {})
        assert first.from_first("run", "here") == second.result().from_first("run", None) == "here"
    assert not list(tmp_path.iterdir())


def test_a_meeting_that_fails_leaves_no_file_behind(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "JOIN_S", 0.1)
    with pytest.raises(TrainingError, match="only 1 of 2 processes came"):
        Rendezvous.join(World(0, 2, job="j"), tmp_path, {})
    assert not list(tmp_path.iterdir())


def test_two_launches_that_share_a_file_do_not_train_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "JOIN_S", 5.0)
    store = rendezvous.serve_store()
    (tmp_path / ".meeting-j").write_text(f"127.0.0.1 {store.port}")
    store.add("arrived", 2)
    Rendezvous.join(World(1, 3, job="j"), tmp_path, {})
    with pytest.raises(TrainingError, match="another launch meets through"):
        Rendezvous.join(World(1, 3, job="j"), tmp_path, {})


@pytest.mark.parametrize(
    ("word", "code", "message"),
    [
        ("training.device=cuda:31", 2, "rank 1 of 2 on {host}: .*training.device is cuda:31"),
        ("data=nowhere", 2, "rank 1 of 2 on {host}: data: "),
        ("model.name=nowhere:build", 2, "rank 1 of 2 on {host}: .*there is no module 'nowhere'"),
    ],
)
def test_every_rank_tells_its_own_error(data, tmp_path, word, code, message) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"data: {data}\nmodel: {{name: regressor}}\n")
    request = TrainRequest(path, (word, f"output={tmp_path}"), under_launcher=True)
    watch = partial(nullcontext, Silent())
    with pytest.raises(MerlinError, match=message.format(host=socket.gethostname())) as raised:
        train_as_rank(request, World(1, 2, job="j"), StopRequest(), lambda run, prepared: None, watch)
    assert raised.value.exit_code == code and "\n" not in str(raised.value)


def test_torchrun_says_which_rank_a_process_is() -> None:
    env = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert World.of_torchrun(env) == World(3, 4, 1, 2)
    assert World.of_torchrun({"RANK": "3", "WORLD_SIZE": "4"}) is None
    assert World.of_child(env) == World(3, 4, 1, 2)


def test_trainers_that_meet_through_files_have_a_gpu_each(monkeypatch) -> None:
    alone = World.of_child({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"})
    assert alone == World(0, 1, 2, 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device("auto", local).index for local in range(4)] == [0, 1, 0, 1]
    assert choose_device("cuda:1", alone.local_rank).index == 1
    with pytest.raises(TrainingError, match="'gpu' is no device; write auto, cpu, cuda or cuda:N"):
        choose_device("gpu", 0)


def test_what_is_no_number_is_never_better() -> None:
    smaller, larger = Judge("loss", "min"), Judge("accuracy", "max")
    assert smaller.is_better(1.0, None) and smaller.is_better(1.0, 2.0) and not smaller.is_better(2.0, 2.0)
    assert larger.is_better(2.0, 1.0) and not larger.is_better(1.0, 2.0)
    assert not smaller.is_better(float("nan"), None) and not larger.is_better(float("inf"), 1.0)
    assert not smaller.is_better(0.95, 1.0, by=0.1)


def test_a_metrics_file_is_continued_after_the_checkpoint(tmp_path) -> None:
    notes: list[str] = []
    log = MetricsLog(tmp_path, 0, notes.append)
    for step in (10, 20, 30):
        log(losses(step, 1.0 / step))
    log(RunEnded(step=30, epoch=1.0, progress=LoopProgress(), state="stopped", reason=""))
    log.close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "train", "st')  # killed in the midst of a line
    log = MetricsLog(tmp_path, 20, notes.append)
    log(losses(30, float("nan")))
    log.close()
    assert [(line["step"], line["values"]["loss"]) for line in read_metrics(path)] == [
        (10, 0.1),
        (20, 0.05),
        (30, None),
    ]
    assert all(json.loads(line) for line in path.read_text().splitlines()) and notes == []


@pytest.mark.parametrize(
    "damaged", ["{}", "[]", "7", '{"step": 10}', '{"kind": "train", "step": "10"}', "[" * 100_000, "no JSON"]
)
def test_a_line_that_is_no_record_is_left_out_when_a_metrics_file_is_continued(
    tmp_path: Path, damaged: str
) -> None:
    notes: list[str] = []
    log = MetricsLog(tmp_path, 0, notes.append)
    log(losses(10, 0.1))
    log.close()
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(f"{damaged}\n{whole}")
    assert [(line.kind, line.step) for line in read_lines(path)] == [("train", 10)]
    MetricsLog(tmp_path, 10, notes.append).close()
    assert path.read_text() == whole and notes == []


def test_reports_cross_a_pipe() -> None:
    report = Report(3, "training", 5, 10, losses={"loss": 0.5}, metrics={"mae": 1.0}, eta_s=2.0)
    assert from_line(report.to_line()) == report
    assert from_line(Note(1, "ünïcode\nline").to_line()) == Note(1, "ünïcode\nline")


def test_lines_tell_validations_and_ends_at_once_and_the_rest_now_and_then() -> None:
    lines: list[str] = []
    now = [0.0]
    display = TrainLines(write=lines.append, clock=lambda: now[0])
    for step in range(0, 100, 10):
        now[0] += 1.0
        display.report(Report(0, "training", step, 100, step / 50, 1234.5, 9.0, {"loss": 0.5}))
    assert len(lines) == 2
    display.report(Report(0, "finished", 100, 100, metrics={"loss": 0.25}, reason="step 100 reached"))
    assert (
        lines[-1]
        == "trainer 0: step 100 of 100, epoch 0.00, validation loss 0.25, finished: step 100 reached"
    )
    assert "1,234 samples/s" in lines[0] and "9.0 s to go" in lines[0]


def test_updates_are_left_out_on_the_device_as_they_are_on_the_host(data, tmp_path, monkeypatch) -> None:
    """The way of a GPU, on the CPU: the optimiser's kernel sees for itself that a loss is no number."""
    words = [
        "model.name=tiny_models:Exploding",
        "model.after=3",
        "training.nonfinite_limit=100",
        "training.steps=10",
    ]
    here, _, _ = train_run(prepare_run(data, tmp_path / "here", *words))
    made = Trainer.__init__

    def on_device(self, *args, **more) -> None:
        made(self, *args, **more)
        self._waits_for_device = True

    monkeypatch.setattr(Trainer, "__init__", on_device)
    there, _, _ = train_run(prepare_run(data, tmp_path / "there", *words))
    states = [
        read_checkpoint(last_checkpoint(run.trainer(0).checkpoints))["trainer"] for run in (here, there)
    ]
    assert state_digest(states[0]["model"]) == state_digest(states[1]["model"])
    assert (
        states[0]["optimizers"]["model"]["state"][0]["step"]
        == states[1]["optimizers"]["model"]["state"][0]["step"]
        == 3
    )


@pytest.mark.parametrize("words", [[], ["training.clip_norm=0.5"]])
def test_ranks_keep_the_same_weights_where_the_loss_of_one_is_infinite(data, tmp_path, words) -> None:
    words = ["model.name=tiny_models:Lopsided", "tournament.ranks_per_trainer=2", *words]
    run = prepare_run(data, tmp_path / "run", *words).begin()
    run.trainer(0).path.mkdir(parents=True)
    run_on_ranks(2, train_with_an_infinite_loss, run.path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_compiled_model_trains_as_the_plain_one(data, tmp_path, monkeypatch) -> None:
    if not effort.IS_LONG:  # the graphs of TorchDynamo, without twenty seconds of a C++ compiler
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    words = ["model.name=regressor", "model.width=16", "model.depth=1", "training.steps=10"]
    losses = [
        train_run(prepare_run(data, tmp_path / str(flag), *words, f"training.compile={flag}"))[
            1
        ].progress.best
        for flag in ("false", "true")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
