from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest
from effort import repeats
from growing_study import FAILED, NUM, OK, SKIPPED, append, chunk, extend_study, make_study, records, writer
from hypothesis import given, settings
from hypothesis import strategies as st
from merged_segments import merge_segments
from msgspec.structs import asdict
from waiting import wait_until

from merlin.errors import WorkspaceError
from merlin.ledger.records import EventRecord, RangeRecord
from merlin.status.snapshot import take_snapshot
from merlin.views import surroundings
from merlin.views.heat import heat
from merlin.views.study_ledgers import StudyLedgers
from merlin.views.study_page import StudyPage, StudyView
from merlin.views.task_list import tasks
from merlin.workspace.directory import Workspace

COUNTS = ("planned", "ok", "failed", "skipped", "missing")


@pytest.fixture
def study(tmp_path: Path) -> Workspace:
    return make_study(tmp_path / "study_20260101-000000")


def add_up(page: StudyPage) -> bool:
    """Whether planned = ok + failed + skipped + missing, step by step and for all."""
    lines = [*page.steps, page.totals]
    sums = {name: sum(getattr(step, name) for step in page.steps) for name in COUNTS}
    return all(
        line.planned == line.ok + line.failed + line.skipped + line.missing for line in lines
    ) and sums == {name: getattr(page.totals, name) for name in COUNTS}


@given(written=st.lists(records(), max_size=12), data=st.data())
@settings(max_examples=repeats(25, 600))
def test_what_is_counted_record_by_record_is_what_a_snapshot_counts(
    tmp_path_factory: pytest.TempPathFactory, written: list, data: st.DataObject
) -> None:
    study = make_study(tmp_path_factory.mktemp("study") / "study_20260101-000000")
    ledgers = StudyLedgers(study.path)
    with writer(study, "w1") as one, writer(study, "w2") as two:
        for record in written:
            data.draw(st.sampled_from([one, two])).append(record)
            if data.draw(st.booleans()):
                continue
            ledgers.update()
            (member,) = ledgers.members
            for step in take_snapshot(study, now=1200.0).steps:
                counts = [member.counts(instance) for instance in member.steps[step.step]]
                for name in COUNTS[1:]:
                    assert sum(count[name] for count in counts) == getattr(step, name)


def test_a_page_has_the_numbers_of_a_snapshot_at_every_look(study: Workspace) -> None:
    view = StudyView(study.path)
    for lo in range(0, NUM, 4):
        append(study, chunk(lo, [OK, FAILED, OK, OK], started=1000.0 + lo), worker=f"w{lo % 3}")
        append(study, RangeRecord(instance="post", lo=lo, hi=lo + 1, outcome=SKIPPED, started=1001.0))
        page, snapshot = view.look(now=1100.0), take_snapshot(study, now=1100.0)
        assert add_up(page)
        for line, step in zip(page.steps, snapshot.steps, strict=True):
            shown = asdict(line)
            assert {name: shown[name] for name in COUNTS} == {name: getattr(step, name) for name in COUNTS}
            assert (line.rate, line.busy_s, line.started, line.ended) == (
                step.rate,
                step.busy_s,
                step.started,
                step.ended,
            )
    assert page.num_failures == 5
    assert [(edge.source, edge.target, edge.kind) for edge in page.edges] == [
        ("sim", "post", "same"),
        ("post", "end", "all"),
    ]


def test_a_study_grows_by_an_extension_while_it_is_looked_at(study: Workspace) -> None:
    view = StudyView(study.path)
    assert view.look().totals.planned == 3 * NUM + 1
    extension = extend_study(study, num=5)
    page = view.look()
    assert page.extensions == ("extensions/001",)
    assert page.totals.planned == 3 * NUM + 1 + 3 * 5 + 1
    assert page.samples is not None
    assert page.samples.num == NUM + 5
    append(extension, chunk(0, [OK] * 5))
    page = view.look()
    assert add_up(page)
    assert {step.step: step.ok for step in page.steps} == {"sim": 5, "post": 0, "end": 0}


def test_an_extension_that_is_being_prepared_is_left_out_until_it_has_a_plan(study: Workspace) -> None:
    (study.path / "extensions" / "001" / "merlin_info").mkdir(parents=True)
    assert StudyView(study.path).look().extensions == ()


def test_damage_in_the_ledger_is_named_and_costs_its_record_alone(study: Workspace) -> None:
    view = StudyView(study.path)
    append(study, chunk(0, [OK] * 4), chunk(4, [OK] * 4), chunk(8, [OK] * 4))
    (segment,) = study.ledger_dir.glob("*.mlg")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    page = view.look()
    assert page.state == "stopped"
    assert len(page.damage) == 1
    assert str(segment) in page.damage[0]
    assert page.totals.ok == 8
    assert add_up(page)


@pytest.mark.parametrize("harm", ["no plan", "no directory", "another study's ledger", "another version"])
def test_a_study_that_cannot_be_read_says_why_and_is_read_again_once_it_can(
    study: Workspace, tmp_path: Path, harm: str
) -> None:
    view = StudyView(study.path)
    append(study, chunk(0, [OK] * 4))
    assert view.look().totals.ok == 4
    aside, foreign = tmp_path / "aside", study.ledger_dir / "x.mlg"
    if harm == "no plan":
        study.plan_path.rename(aside)
    elif harm == "no directory":
        study.path.rename(aside)
    elif harm == "another version":
        foreign.write_bytes(b"MERLINLG" + b"\xff" * 100)
    else:
        other = make_study(tmp_path / "other", extension=7)
        append(other, chunk(0, [OK]))
        next(other.ledger_dir.glob("*.mlg")).rename(foreign)
    page = view.look()
    assert page.state == "unreadable"
    assert str(study.path) in page.state_reason
    assert page.totals.planned == 0
    with pytest.raises(WorkspaceError):
        view.data_set("collect")
    if harm == "no plan":
        aside.rename(study.plan_path)
    elif harm == "no directory":
        aside.rename(study.path)
    else:
        foreign.unlink()
    append(study, chunk(4, [OK] * 4))
    assert view.look().totals.ok == 8


def test_a_workspace_that_was_replaced_is_read_anew(study: Workspace, tmp_path: Path) -> None:
    view = StudyView(study.path)
    append(study, chunk(0, [OK] * 4))
    view.look()
    study.path.rename(tmp_path / "old")
    make_study(study.path, num=7)
    page = view.look()
    assert (page.totals.planned, page.totals.ok) == (3 * 7 + 1, 0)


def test_merged_segments_change_no_number(study: Workspace) -> None:
    view = StudyView(study.path)
    for lo in range(0, NUM, 4):
        append(study, chunk(lo, [OK, FAILED, OK, OK], started=1000.0 + lo), worker=f"w{lo}")
    before, bars = view.look(now=1100.0), view.throughput()
    assert merge_segments(study.ledger_dir) == 5
    after = view.look(now=1100.0)
    assert (after.steps, after.totals, after.state) == (before.steps, before.totals, before.state)
    assert view.throughput() == bars
    append(study, chunk(0, [OK] * NUM, attempt=2, started=1090.0))
    assert view.look(now=1100.0).totals.ok == NUM


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ([], "new", "not been run"),
        ([EventRecord(kind="run_started", time=999.0)], "stopped", "without a word"),
        (
            [
                EventRecord(kind="run_started", time=999.0),
                EventRecord(kind="run_stopped", data={"reason": "interrupted"}, time=1005.0),
            ],
            "stopped",
            "interrupted",
        ),
        (
            [
                EventRecord(kind="run_started", time=999.0),
                EventRecord(kind="run_failed", data={"reason": "OSError: full"}, time=1005.0),
                EventRecord(kind="notified", time=1006.0),
            ],
            "failed",
            "OSError: full",
        ),
    ],
)
def test_the_state_of_a_study_that_nobody_runs(
    study: Workspace, events: list[EventRecord], state: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(study, *events, worker="controller")
    monkeypatch.setattr(surroundings, "FIRST_S", 60.0)
    view = StudyView(study.path)
    page = view.look()
    assert page.state == state
    assert bool(page.obstacles) == bool(view.look().obstacles) == (state == "stopped")
    assert reason in page.state_reason
    assert page.executor == ("local" if events else "")
    assert (page.workers, page.num_slots, page.eta) == ((), 0, None)


def test_a_study_with_nothing_missing_has_finished_or_failed(study: Workspace) -> None:
    view = StudyView(study.path)
    ends = [RangeRecord(instance=i.id, lo=0, hi=i.num_tasks, outcome=OK) for i in study.plan.instances]
    append(study, *ends)
    assert (view.look().state, view.look().state_reason) == ("finished", "")
    append(study, chunk(0, [FAILED], attempt=2), worker="w1", session="run2")
    assert (view.look().state, view.look().state_reason) == ("failed", "1 task failed")


def test_a_published_study_whose_servers_do_not_answer_is_never_called_running(
    study: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MERLIN_BROKER_URL", "redis://127.0.0.1:1/0")
    append(study, EventRecord(kind="run_started", data={"executor": "celery"}), worker="controller")
    view = StudyView(study.path)
    assert view.look().state == "unknown"
    page = wait_until(
        lambda: next((p for p in [view.look()] if p.obstacles and "127.0.0.1:1" in p.state_reason), None)
    )
    assert (page.state, page.executor) == ("unknown", "workers")
    assert any(obstacle.remedy for obstacle in page.obstacles)
    assert add_up(page)


def test_any_thread_may_look_while_the_ledger_grows(study: Workspace) -> None:
    view, errors = StudyView(study.path), []
    is_over = threading.Event()

    def read() -> None:
        try:
            while not is_over.is_set():
                page = view.look()
                assert add_up(page)
                found = heat(view, "sim", 7)
                assert sum(sum(cell[2:]) for cell in found.cells) == found.num_tasks
                assert tasks(view, "sim", "ok", limit=200).total >= page.totals.ok
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    with writer(study, "w1") as ledger:
        for i in range(NUM):
            ledger.append(chunk(i, [OK], started=1000.0 + i))
    is_over.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert view.look().totals.ok == NUM


def test_training_runs_and_data_sets_are_found_by_keys_without_slashes(study: Workspace) -> None:
    run = study.path / "end" / "models" / "run"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"format": "merlin-run", "version": 1}))
    (study.path / "end" / "run.json").write_text("{}")  # somebody else's
    view = StudyView(study.path)
    (line,) = view.look().runs
    assert (line.key, line.name) == ("end:models:run", "end/models/run")
    assert view.training_run(line.key) == run
    with pytest.raises(WorkspaceError, match="no training run"):
        view.training_run("../../etc")


def test_a_page_is_plain_data(study: Workspace) -> None:
    append(study, chunk(0, [OK, FAILED]))
    view = StudyView(study.path, id="study~2")
    plain = msgspec.to_builtins(view.look())
    assert json.loads(json.dumps(plain))["id"] == "study~2"
    assert json.loads(json.dumps(msgspec.to_builtins(heat(view, "sim"))))["cells"][0] == [0, 1, 1, 0, 0, 0]
