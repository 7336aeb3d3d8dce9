"""The logs of a trainer's events: JSON lines and TensorBoard go on where a run resumes, and fail on their own."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from train_events import losses

from merlin.train.event_log import EventLog
from merlin.train.events import (
    CheckpointSaved,
    Event,
    RoundPlayed,
    RunEnded,
    StepDone,
    Validated,
)
from merlin.train.metrics_log import MetricsLog, read_metrics
from merlin.train.process import LOGS
from merlin.train.progress import LoopProgress
from merlin.train.tensorboard_log import TensorBoardLog


def every_event(step: int) -> list[Event]:
    at: dict[str, Any] = {"step": step, "epoch": 1.0, "progress": LoopProgress(metrics={"mae": 2.0}, round=1)}
    return [
        losses(step),
        Validated(is_best=True, **at),
        RoundPlayed(facts={"partner": 1, "kept": "local", "values": {"spread": 3.0}}, **at),
        CheckpointSaved(**at),
        StepDone(**at),
        RunEnded(state="finished", reason="", **at),
    ]


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """The steps and values of every scalar that TensorBoard shows."""
    found = EventAccumulator(str(directory / "tensorboard")).Reload()
    names = found.Tags()["scalars"]
    return {name: [(each.step, round(each.value, 6)) for each in found.Scalars(name)] for name in names}


def log_all(log: EventLog, *events: Event) -> None:
    for event in events:
        log(event)
    log.close()


def test_a_line_of_metrics_has_its_kind_step_facts_and_values_in_this_order(tmp_path: Path) -> None:
    log_all(MetricsLog(tmp_path, 0, pytest.fail), *every_event(10))
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == [
        '{"kind": "train", "step": 10, "epoch": 1.0, "time_s": 0.0, "samples_per_s": 9.0, '
        '"values": {"loss": 0.5, "lr/model": 0.1}}',
        '{"kind": "validation", "step": 10, "epoch": 1.0, "time_s": 0.0, "best": true, "values": {"mae": 2.0}}',
        '{"kind": "round", "step": 10, "round": 1, "partner": 1, "kept": "local", "values": {"spread": 3.0}}',
        '{"kind": "end", "step": 10, "state": "finished", "reason": "", "values": {}}',
    ]


def test_tensorboard_shows_every_value_under_its_kind_and_name(tmp_path: Path) -> None:
    log_all(TensorBoardLog(tmp_path, 0, pytest.fail), *every_event(10))
    assert scalars(tmp_path) == {
        "train/loss": [(10, 0.5)],
        "train/lr/model": [(10, 0.1)],
        "validation/mae": [(10, 2.0)],
        "round/spread": [(10, 3.0)],
    }


def test_tensorboard_forgets_what_came_after_the_checkpoint_of_a_resumed_run(tmp_path: Path) -> None:
    log_all(TensorBoardLog(tmp_path, 0, pytest.fail), *(losses(step, 1.0) for step in (10, 20, 30)))
    log_all(TensorBoardLog(tmp_path, 20, pytest.fail), losses(30, 4.0))
    assert scalars(tmp_path)["train/loss"] == [(10, 1.0), (20, 1.0), (30, 4.0)]


def test_without_tensorboard_only_its_log_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it were not installed
    for log_type in LOGS:
        log_all(log_type(tmp_path, 0, pytest.fail), *every_event(10))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


class OnFullDisk(SummaryWriter):
    """TensorBoard's writer where there is no room."""

    def add_scalar(self, *args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_tensorboard_on_a_full_disk_costs_one_note_and_no_line_of_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", OnFullDisk)
    notes: list[str] = []
    logs = [log_type(tmp_path, 0, notes.append) for log_type in LOGS]
    for step in (10, 20):
        for log in logs:
            log(losses(step))
    for log in logs:
        log.close()
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [10, 20]
    assert notes == [f"{tmp_path / 'tensorboard'} cannot be written: No space left on device"]


def test_metrics_on_a_full_disk_cost_one_note_and_nothing_of_tensorboard(tmp_path: Path) -> None:
    notes: list[str] = []
    logs = [log_type(tmp_path, 0, notes.append) for log_type in LOGS]
    metrics = next(log for log in logs if isinstance(log, MetricsLog))
    metrics.close()
    metrics._file = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115
    for step in (10, 20):
        for log in logs:
            log(losses(step))
    for log in logs:
        log.close()
    assert scalars(tmp_path)["train/loss"] == [(10, 0.5), (20, 0.5)]
    assert notes == [f"{tmp_path / 'metrics.jsonl'} cannot be written: No space left on device"]


class Careless(EventLog):
    """A log that relies on having been opened."""

    name = "careless"

    def _open(self, step: int) -> None:
        self._file = self._path.open("a")

    def _write(self, event: Event) -> None:
        self._file.write(event.kind)

    def _close(self) -> None:
        self._file.close()


def test_a_log_that_cannot_be_opened_stays_closed(tmp_path: Path) -> None:
    notes: list[str] = []
    log_all(Careless(tmp_path / "missing", 0, notes.append), *every_event(10))
    assert len(notes) == 1


def test_metrics_that_cannot_be_opened_cost_one_note(tmp_path: Path) -> None:
    notes: list[str] = []
    log_all(MetricsLog(tmp_path / "missing", 0, notes.append), *every_event(10))
    assert notes == [f"{tmp_path / 'missing/metrics.jsonl'} cannot be written: No such file or directory"]


def test_tensorboard_that_cannot_be_opened_costs_one_note(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "tensorboard").write_text("")
    log_all(TensorBoardLog(tmp_path, 0, notes.append), *every_event(10))
    (note,) = notes
    assert note.startswith(f"{tmp_path / 'tensorboard'} cannot be written: ")


class Kept(EventLog):
    """A log that has room only at some steps."""

    name = "kept"

    def _open(self, step: int) -> None:
        self.steps: list[int] = []

    def _write(self, event: Event) -> None:
        if event.step < 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.steps.append(event.step)

    def _close(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    notes: list[str] = []
    log = Kept(tmp_path, 0, notes.append)
    log_all(log, losses(10), losses(20), losses(30))
    assert log.steps == [30] and len(notes) == 1


def test_a_line_of_metrics_is_json_when_a_value_is_no_number(tmp_path: Path) -> None:
    log_all(MetricsLog(tmp_path, 0, pytest.fail), losses(10, float("inf")))
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["values"]["loss"] is None
