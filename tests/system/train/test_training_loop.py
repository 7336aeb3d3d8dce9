"""Training from the beginning to the end, with stops, and with everything a configuration can ask for."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from surrogate_data import make_surrogate_data
from train_run import StopAt, last_checkpoint, prepare_run, state_digest, train_run
from waiting import wait_until

from merlin.base.locks import locked
from merlin.errors import CheckpointError, TrainingError
from merlin.train import sharded_state
from merlin.train.checkpoint import Checkpoints, best_checkpoint, read_checkpoint
from merlin.train.events import Event, StopRequest, Validated
from merlin.train.metrics_log import read_metrics
from merlin.train.parallel.mesh import Mesh
from merlin.train.parallel.rendezvous import Rendezvous
from merlin.train.parallel.world import World
from merlin.train.process import open_loop, set_up_torch
from merlin.train.reports import Silent
from merlin.train.run_directory import RunDirectory, publish_best


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


def final_state(run: RunDirectory, trainer: int = 0) -> str:
    return state_digest(read_checkpoint(last_checkpoint(run.trainer(trainer).checkpoints)))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


VARIANTS = {
    "plain": [],
    "gan": ["model.name=tiny_models:Gan", "optimizer.phases.discriminator.lr=0.001"],
    "images": ["fields.images=[image]", "training.accumulate=2"],
    "average_and_clipping": ["training.ema=0.9", "training.clip_norm=0.5", "optimizer.name=adamw"],
    "sgd_with_cosine": [
        "optimizer={name: sgd, lr: 0.01, momentum: 0.9}",
        "schedule={name: cosine, warmup_steps: 5}",
    ],
    "bf16": ["training.precision=bf16"],
}


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_run_that_was_stopped_ends_bit_by_bit_as_one_that_was_not(data, tmp_path, words) -> None:
    unbroken, ending, _ = train_run(prepare_run(data, tmp_path / "unbroken", *words))
    assert ending.state == "finished" and ending.step == 40
    broken = prepare_run(data, tmp_path / "broken", *words)
    run, ending, _ = train_run(broken, stop=StopAt(7))
    assert ending.state == "stopped" and ending.step == 7
    assert train_run(broken, run=run, stop=StopAt(16))[1].step == 23
    run, ending, recorder = train_run(broken, run=run)
    assert ending.state == "finished"
    assert "resumed at step 23 of 40" in recorder.notes
    assert final_state(run) == final_state(unbroken)
    seen = [(line["kind"], line["step"]) for line in read_metrics(run.trainer(0).path / "metrics.jsonl")]
    assert [step for kind, step in seen if kind == "validation"] == [10, 20, 30, 40]


def test_a_run_learns_and_its_best_model_is_published(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run", "training.steps=200", "training.validate_every=20")
    run, ending, _ = train_run(prepared)
    lines = [
        line for line in read_metrics(run.trainer(0).path / "metrics.jsonl") if line["kind"] == "validation"
    ]
    losses = [line["values"]["loss"] for line in lines]
    assert losses[-1] < 0.5 * losses[0]
    best = json.loads((run.best / "best.json").read_text())
    assert best["value"] == min(losses) == ending.progress.best
    model = torch.load(run.best / "model.pt", weights_only=True)
    assert model["step"] == best["step"] and model["shapes"]["scalars"] == ["energy", "radius", "time"]


def test_seeds_make_runs_equal_and_different(data, tmp_path) -> None:
    names = {"a": 1, "b": 1, "c": 2}
    one, two, other = (
        train_run(prepare_run(data, tmp_path / name, f"seed={seed}"))[0] for name, seed in names.items()
    )
    assert final_state(one) == final_state(two) != final_state(other)


def test_parts_of_a_batch_give_the_gradients_of_the_whole(data, tmp_path) -> None:
    words = ["model.name=regressor", "training.steps=10", "optimizer.name=sgd"]
    weights = [
        read_checkpoint(
            last_checkpoint(
                train_run(prepare_run(data, tmp_path / f"by{n}", *words, f"training.accumulate={n}"))[0]
                .trainer(0).checkpoints
            )
        )["trainer"]["model"]
        for n in (1, 4)
    ]  # fmt: skip
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-6)


def test_a_run_that_has_finished_is_not_trained_again_but_may_be_made_longer(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run")
    run, _, _ = train_run(prepared)
    before = final_state(run)
    assert train_run(prepared, run=run)[1].step == 40
    assert final_state(run) == before
    longer = prepare_run(data, tmp_path / "run", "training.steps=60")
    assert train_run(longer, run=run)[1].step == 60
    whole, _, _ = train_run(prepare_run(data, tmp_path / "whole", "training.steps=60"))
    assert final_state(run) == final_state(whole)


def test_early_stopping_ends_the_run_where_nothing_improves(data, tmp_path) -> None:
    words = ["optimizer.lr=1e-12", "training.early_stopping={metric: loss, patience: 2, min_delta: 0.1}"]
    run, ending, _ = train_run(prepare_run(data, tmp_path / "run", *words))
    assert (ending.state, ending.step) == ("finished", 30)
    assert "has not improved in 2 validations" in ending.reason
    assert train_run(prepare_run(data, tmp_path / "run", *words), run=run)[1].step == 30


MAE = "training.early_stopping={metric: mae, patience: 9}"


def published(run: RunDirectory) -> dict:
    return json.loads((run.best / "best.json").read_text())


@pytest.mark.parametrize(
    ("first", "then"), [([], [MAE]), ([MAE], []), ([MAE], ["training.early_stopping.metric=loss"])]
)
def test_a_run_that_goes_on_with_another_metric_forgets_the_values_of_the_one_before(
    data, tmp_path, first, then
) -> None:
    two = [
        "model={name: regressor, width: 8}",
        "tournament={trainers: 2, strategy: none}",
        "optimizer.lr=0.001",
    ]
    begun = prepare_run(data, tmp_path / "run", *two, *first)
    run, _, _ = train_run(begun)
    train_run(begun, run=run, trainer=1, stop=StopAt(25))
    before = "mae" if first else "loss"
    assert published(run)["metric"] == before
    now = prepare_run(data, tmp_path / "run", *two, *then)
    for trainer, steps in ((0, [40]), (1, [30, 40])):  # the first one has no steps left
        _, ending, recorder = train_run(now, run=run, trainer=trainer)
        after = "loss" if before == "mae" else "mae"
        assert any(f"{after} decides from now on, and no longer {before}" in note for note in recorder.notes)
        assert (
            ending.progress.best == ending.progress.best_metrics[after] and ending.progress.best_step in steps
        )
        assert published(run)["metric"] == after, "the value of the other trainer is that of another metric"
    assert not train_run(now, run=run)[2].notes[1:], "it is told once"


def test_a_run_that_was_stopped_before_it_learned_anything_publishes_nothing(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run", "tournament={trainers: 2, strategy: none}")
    run = prepared.begin()
    for looks in (0, 3):
        for trainer in range(2):
            assert train_run(prepared, run=run, trainer=trainer, stop=StopAt(looks))[1].state == "stopped"
            assert best_checkpoint(run.trainer(trainer).checkpoints) is None
    assert publish_best(run, prepared.config) is None and not run.best.exists()


def test_trainers_that_end_together_publish_the_best_one_after_the_other(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run", "tournament={trainers: 2, strategy: none}")
    run = prepared.begin()
    for trainer in range(2):
        train_run(prepared, run=run, trainer=trainer)
    best, lock = published(run), run.path / "best.lock"
    winner, hidden = run.trainer(best["trainer"]).path, tmp_path / "hidden"
    winner.rename(hidden)
    with ThreadPoolExecutor(1) as pool:
        with locked(lock):
            later = pool.submit(publish_best, run, prepared.config)
            waits = f":{lock.stat().st_ino} "
            wait_until(
                lambda: (
                    any("->" in x and waits in x for x in Path("/proc/locks").read_text().splitlines())
                    or later.done()
                )
            )
            hidden.rename(winner)
        assert later.result() == best == published(run)


def test_only_the_last_checkpoints_and_the_best_are_kept(data, tmp_path) -> None:
    run, ending, _ = train_run(
        prepare_run(data, tmp_path / "run", "training.checkpoint_every=5", "training.keep=2")
    )
    directory = run.trainer(0).checkpoints
    best = ending.progress.best_step
    assert Checkpoints(directory, 2).steps() == [35, 40]
    assert read_checkpoint(best_checkpoint(directory))["step"] == best
    assert not list(directory.glob("*.tmp"))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run")
    run, _, _ = train_run(prepared)
    before = final_state(run)
    newest = run.trainer(0).checkpoints / "step_00000040.1"
    flip_a_bit(newest / "__0_0.distcp")  # and perhaps of the best one, whose file it is
    run, ending, recorder = train_run(prepared, run=run)
    assert any("step_00000040.1 is damaged" in note for note in recorder.notes)
    assert any("of step 30" in note for note in recorder.notes)
    assert ending.step == 40 and final_state(run) == before


def test_without_any_readable_checkpoint_the_run_ends_with_advice(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run")
    run, _, _ = train_run(prepared)
    for path in run.trainer(0).checkpoints.glob("*/state.pt"):
        path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="remove them to begin anew"):
        train_run(prepared, run=run)


def test_a_loss_that_is_no_number_changes_nothing_and_ends_the_run(data, tmp_path) -> None:
    words = ["model.name=tiny_models:Exploding", "model.after=11", "training.nonfinite_limit=6"]
    prepared = prepare_run(data, tmp_path / "run", *words)
    with pytest.raises(TrainingError, match=r"not finite for 6 steps in a row, from step 12 on") as raised:
        train_run(prepared)
    ids = str(raised.value).rpartition("samples of step 12: ")[2].rstrip("…").strip(" ,").split(", ")
    assert len(ids) == 20 and all(id.isdigit() for id in ids)
    state = read_checkpoint(last_checkpoint(prepared.begin().trainer(0).checkpoints))
    assert state["step"] == 10
    assert all(torch.isfinite(v).all() for v in state["trainer"]["model"].values())


def test_a_run_in_which_no_validation_was_finite_ends_with_an_error_however_often(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run", "optimizer.lr=1e30", "training.steps=9")
    for _ in range(2):
        with pytest.raises(TrainingError, match="without a best model: in no validation was loss finite"):
            train_run(prepared)
    assert read_checkpoint(last_checkpoint(prepared.begin().trainer(0).checkpoints))["step"] == 9


def test_too_little_memory_is_explained(data, tmp_path) -> None:
    with pytest.raises(TrainingError, match=r"cpu is out of memory with 64 samples.*\n.*training.accumulate"):
        train_run(prepare_run(data, tmp_path / "run", "model.name=tiny_models:greedy"))


def test_a_full_disk_costs_a_checkpoint_and_says_so(data, tmp_path, monkeypatch) -> None:
    write, full = sharded_state.write_state, {20, 30}

    def on_full_disk(path, state):
        if state.get("step") in full:
            write(Path("/dev/full"), state)
        write(path, state)

    monkeypatch.setattr(sharded_state, "write_state", on_full_disk)
    run, ending, recorder = train_run(prepare_run(data, tmp_path / "run"))
    assert "could not be written: No space left on device; the one of step 10 stays" in " ".join(
        recorder.notes
    )
    assert ending.state == "finished" and Checkpoints(run.trainer(0).checkpoints, 3).steps() == [10, 40]
    full.add(40)
    with pytest.raises(CheckpointError, match="the newest is of step 10"):
        train_run(prepare_run(data, tmp_path / "other"))


@contextmanager
def opened(prepared):
    """The loop of a run, at its beginning."""
    run = prepared.begin()
    mesh = Mesh.build(Rendezvous(World()), prepared.config.tournament, 0)
    device = set_up_torch(run, prepared.config, mesh)
    with open_loop(run, prepared.config, mesh, device, Silent(), StopRequest()) as loop:
        yield loop


def test_what_a_trainer_exports_another_becomes(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run", "model.name=tiny_models:Gan", "training.ema=0.5")
    with opened(prepared) as one, opened(prepared) as two:
        one.trainer.train_steps(5)
        discriminator = state_digest(two.trainer.trainee.discriminator.state_dict())
        sent = one.trainer.export_state(["generators"])
        assert set(sent["optimizers"]) == {"generator"}
        one.trainer.train_steps(1)  # what was sent is a copy
        two.trainer.import_state(sent, ["generators"])
        assert state_digest(two.trainer.export_state(["generators"])) == state_digest(sent)
        assert state_digest(two.trainer.trainee.discriminator.state_dict()) == discriminator
        two.trainer.import_state(one.trainer.export_state())
        assert state_digest(two.trainer.export_state()) == state_digest(one.trainer.export_state())
        assert two.trainer.evaluate(two.validation) == one.trainer.evaluate(one.validation)


def test_metrics_are_means_over_all_samples(data, tmp_path) -> None:
    with opened(prepare_run(data, tmp_path / "run")) as loop:
        found = loop.trainer.evaluate(loop.validation)
        dataset = loop.validation.dataset
        loop.trainer.trainee.eval()
        with torch.no_grad():
            whole = loop.trainer.trainee.metrics(dataset[list(range(len(dataset)))])
        assert math.isclose(found["loss"], float(whole["loss"].double().mean()), rel_tol=1e-6)


def test_evaluating_draws_no_random_number_of_the_trainer(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run")
    with opened(prepared) as one, opened(prepared) as two:
        for loop, often in ((one, 1), (two, 3)):
            torch.manual_seed(5)
            for _ in range(often):
                loop.trainer.evaluate(loop.validation)
            loop.trainer.train_steps(3)
        assert state_digest(one.trainer.export_state()) == state_digest(two.trainer.export_state())


def test_whoever_listens_sees_every_event_in_order(data, tmp_path) -> None:
    words = ["training.steps=20", "training.checkpoint_every=15"]
    with opened(prepare_run(data, tmp_path / "run", *words)) as loop:
        seen: list[Event] = []
        loop.listeners.append(seen.append)
        loop.run()
    kinds = [(event.step, type(event).__name__) for event in seen if event.step >= 10]
    assert [kind for step, kind in kinds if step == 10][:3] == ["LossesTaken", "Validated", "CheckpointSaved"]
    assert [kind for step, kind in kinds if step == 15] == ["LossesTaken", "CheckpointSaved", "StepDone"]
    assert kinds[-1] == (20, "RunEnded") and kinds[-2][1] in ("StepDone", "CheckpointSaved")
    validations = [event.progress.validated_step for event in seen if isinstance(event, Validated)]
    assert validations == [10, 20]  # each has the progress of its moment
