"""A data set is made again by another definition: it is the one that a fresh run would have made."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from shard_study import FIELDS, ShardStudy, make_cmd_study, make_study, values_of
from test_growing import make_extension, publish, run

import merlin
from merlin.errors import MerlinError, ShardError, UsageError
from merlin.ledger.records import RESET, ChunkRecord, Failure, RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan import Aggregate, PlannedField, StepKind
from merlin.plan.plan_io import write_plan
from merlin.plan.tasks import Outcome
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.proving.verify import verify
from merlin.shards.recollecting import old_shards
from merlin.shards.recollecting import run as engine
from merlin.shards.recollecting.definition import kept_filters, stored_fields
from merlin.shards.recollecting.run import collect_again
from merlin.shards.recollecting.share import Recollection, recollection
from merlin.shards.writing.cleanup import clean_data_set
from merlin.workspace.directory import members

NUM = 50
JSON_FIELDS = (
    PlannedField(name="energy", file="out.json", key="energy"),
    PlannedField(name="count", dtype="int32", file="out.json", key="count"),
    PlannedField(name="history", kind="series", dtype="float32", shape=(4,), file="out.json", key="history"),
    PlannedField(name="hits", kind="ragged", dtype="float32", ragged=True, file="out.json", key="hits"),
    PlannedField(name="note", kind="text", file="note.txt"),
)
MORE = PlannedField(name="twice", dtype="float32", file="out.json", key="energy", keep_bits=12)
DERIVED = PlannedField(name="ratio", expression="energy / (count + 1)")


def files_of(task: int) -> dict[str, object]:
    out = {
        "energy": task * 0.5, "count": task, "history": [task + i for i in range(4)],
        "hits": [float(task)] * (task % 4),
    }  # fmt: skip
    return {"out.json": out, "note.txt": f"täsk {task}".encode()}


def cmd_study(path: Path, fields=JSON_FIELDS, **more) -> ShardStudy:
    return make_cmd_study(path, {task: files_of(task) for task in range(NUM)}, fields, **more)


def ended(study: ShardStudy) -> ShardStudy:
    study.collect_all(chunk=12)
    study.finish()
    return study


def defined(study: ShardStudy, **changes):
    """The study's aggregate step by another definition."""
    aggregate = replace(study.aggregate.aggregate, **changes)
    rows = len(study.sources) * study.sources[0].num_tasks
    return replace(study.aggregate, aggregate=aggregate, num_tasks=-(-rows // aggregate.samples_per_shard))


def again(study: ShardStudy, out: Path, *, workers: int | None = 1, **changes):
    request = recollection(members(study.workspace), defined(study, **changes), out)
    return collect_again(request, num_workers=workers)


def tree(path: Path) -> dict[str, tuple[int, int]]:
    """Every file of a study, with its size and time."""
    return {
        str(p.relative_to(path)): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in path.rglob("*")
        if p.is_file()
    }


def require_same(found, fresh: ShardStudy) -> None:
    """It is the data set of a fresh run, and intact."""
    ours, theirs = found.data, read_manifest(fresh.directory)
    assert ours.content_digest == theirs.content_digest
    assert ours.counts == theirs.counts and ours.splits == theirs.splits
    assert [s.num_rows for s in ours.shards] == [s.num_rows for s in theirs.shards]
    assert [(f.name, f.statistics, f.lengths) for f in ours.fields] == [
        (f.name, f.statistics, f.lengths) for f in theirs.fields
    ]
    assert [(f.expression, f.num, f.rows) for f in ours.filters] == [
        (f.expression, f.num, f.rows) for f in theirs.filters
    ]
    assert [(s.failed, s.filtered, s.missing, s.skipped) for s in ours.sources] == [
        (s.failed, s.filtered, s.missing, s.skipped) for s in theirs.sources
    ]
    report = verify(ours.directory)
    assert report.ok, [p.render() for p in report.problems]
    assert not (ours.directory / ".collect").exists()


CHANGES = {
    "the same": {},
    "other codec": {"compression": "zstd"},
    "other shards": {"samples_per_shard": 7},
    "one shard": {"samples_per_shard": 1000, "compression": "gzip", "level": 1},
    "fewer fields": {"fields": JSON_FIELDS[3:]},
    "filters": {"valid": ("count % 3 != 0", "energy < 20")},
    "splits": {"splits": (("train", 0.5), ("test", 0.5)), "seed": 3},
    "derived": {"fields": (*JSON_FIELDS, DERIVED), "valid": ("ratio < 0.49",)},
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A study whose files are there, and one that has its shards alone; nobody changes them."""
    root = tmp_path_factory.mktemp("both")
    studies = {name: ended(cmd_study(root / name)) for name in ("files", "shards")}
    shutil.rmtree(studies["shards"].workspace.path / "sim")
    return studies


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_it_is_the_data_set_of_a_fresh_run(tmp_path, both, change):
    fresh = ended(cmd_study(tmp_path / "fresh", **{"per_shard": 20, **renamed(change)}))
    for name, study in both.items():
        before = tree(study.workspace.path)
        found = again(study, tmp_path / name, **change)
        require_same(found, fresh)
        assert tree(study.workspace.path) == before
        assert (found.origins.files, found.origins.shards) == ((NUM, 0) if name == "files" else (0, NUM))


def renamed(change: dict) -> dict:
    """As `make_study` calls it."""
    made = dict(change)
    if "samples_per_shard" in made:
        made["per_shard"] = made.pop("samples_per_shard")
    return made


@pytest.mark.parametrize("workers", [1, 2])
def test_new_fields_come_from_the_files(tmp_path, workers):
    study = ended(cmd_study(tmp_path / "ws", JSON_FIELDS[:1]))
    fields = (*JSON_FIELDS, MORE)
    found = again(study, tmp_path / "out", workers=workers, fields=fields, samples_per_shard=9)
    require_same(found, ended(cmd_study(tmp_path / "fresh", fields, per_shard=9)))
    with merlin.open_shards(tmp_path / "out") as data:
        np.testing.assert_array_equal(data["energy"][:], np.arange(NUM) * 0.5)
        assert data["note"][3] == "täsk 3"


def test_a_renamed_field_comes_from_the_shards_as_it_is_the_same_value(tmp_path):
    study = ended(cmd_study(tmp_path / "ws"))
    shutil.rmtree(study.workspace.path / "sim")
    fields = tuple(replace(field, name=f"new_{field.name}", units="m") for field in JSON_FIELDS)
    require_same(again(study, tmp_path / "out", fields=fields), ended(cmd_study(tmp_path / "fresh", fields)))


def test_a_field_that_is_nowhere_is_named(tmp_path):
    study = ended(cmd_study(tmp_path / "ws"))
    shutil.rmtree(study.workspace.path / "sim")
    with pytest.raises(ShardError, match=r"field 'twice' of tasks .*their files are not there"):
        again(study, tmp_path / "out", fields=(*JSON_FIELDS, MORE))
    assert not (tmp_path / "out").exists()  # nothing was finished that a later call could go on from


def test_what_an_old_filter_rejected_comes_from_the_files_after_a_clean_up(tmp_path):
    valid = ("count % 5 != 0",)
    study = ended(cmd_study(tmp_path / "ws", valid=valid, cleanup=True))
    clean_data_set(study.workspace, study.aggregate)
    assert not study.workspace.task_dir(study.sources[0], 1).exists()
    found = again(study, tmp_path / "out", valid=("count != 3",), samples_per_shard=15)
    require_same(found, ended(cmd_study(tmp_path / "fresh", valid=("count != 3",), per_shard=15)))
    assert (found.origins.files, found.origins.shards) == (10, 40)


def test_rows_that_do_not_fit_the_new_definition_have_failed(tmp_path):
    files = {task: files_of(task) for task in range(NUM)}
    for task in (4, 31):
        del files[task]["out.json"]["hits"]
    study = ended(make_cmd_study(tmp_path / "ws", files, JSON_FIELDS[:2]))
    found = again(study, tmp_path / "out", fields=JSON_FIELDS, samples_per_shard=6)
    require_same(found, ended(make_cmd_study(tmp_path / "fresh", files, JSON_FIELDS, per_shard=6)))
    assert sum(found.failed.values()) == 2 and "'hits'" in next(iter(found.failed))
    assert found.data.failures == read_manifest(tmp_path / "fresh" / "collect").failures


def test_failed_skipped_and_missing_tasks_stay_what_they_were(tmp_path):
    def make(path, **more):
        study = cmd_study(path, **more)
        study.failures |= {(0, 7): "exit code 1"}
        study.skipped, study.not_run = {(0, 8)}, {(0, 40), (0, 41)}
        study.collect(0, NUM, ok=[t not in (7, 8, 40, 41) for t in range(NUM)])
        study.finish()
        return study

    study = make(tmp_path / "ws")
    require_same(again(study, tmp_path / "out", samples_per_shard=8), make(tmp_path / "fresh", per_shard=8))


def test_tasks_that_failed_for_their_outputs_alone_are_tried_again(tmp_path):
    wrong = (*JSON_FIELDS, PlannedField(name="twice", file="out.json", key="enrgy"))
    study = cmd_study(tmp_path / "ws", wrong)
    study.collect_all()
    assert len(study.failures) == NUM
    (study.workspace.task_dir(study.sources[0], 5) / "out.json").unlink()
    record_with_exit_code_0(study)
    right = (*JSON_FIELDS, PlannedField(name="twice", file="out.json", key="energy"))
    found = again(study, tmp_path / "out", fields=right, samples_per_shard=8)
    assert found.data.counts.ok == NUM - 1 and sum(found.failed.values()) == 1
    files = {task: files_of(task) for task in range(NUM)}
    del files[5]["out.json"]
    require_same(found, ended(make_cmd_study(tmp_path / "fresh", files, right, per_shard=8)))


def record_with_exit_code_0(study: ShardStudy) -> None:
    """As a run does: the program had ended well."""
    failures = tuple(Failure(task=t, cause=c, exit_code=0) for (_, t), c in sorted(study.failures.items()))
    with LedgerWriter(study.workspace.ledger_dir, "w0", sync=False) as ledger:
        ledger.append(
            ChunkRecord(
                instance="sim", lo=0, hi=NUM, started=100.0, elapsed_s=1.0, failures=failures,
                outcomes=np.full(NUM, Outcome.FAILED, np.uint8), seconds=np.zeros(NUM, np.float32),
            )
        )  # fmt: skip


def test_a_study_in_which_nothing_ended_well(tmp_path):
    study = cmd_study(tmp_path / "ws")
    study.failures |= {(0, t): "exit code 1" for t in range(NUM)}
    study.finish()
    found = again(study, tmp_path / "out", samples_per_shard=30)
    assert found.data.counts.failed == NUM and found.data.num_rows == 0 and verify(tmp_path / "out").ok


def test_several_sources(tmp_path):
    params = ({"P": 1}, {"P": 2})
    study = ended(make_study(tmp_path / "ws", params=params))
    found = again(
        study, tmp_path / "out", samples_per_shard=30, compression="blosc2", valid=("P * count < 60",)
    )
    fresh = make_study(tmp_path / "fresh", params=params, per_shard=30, valid=("P * count < 60",))
    require_same(found, ended(fresh))


def test_the_outputs_of_functions_come_from_the_shards(tmp_path):
    study = ended(make_study(tmp_path / "ws"))
    changes = {"fields": (*FIELDS[1:], PlannedField(name="half", expression="count / 2"))}
    found = again(study, tmp_path / "out", samples_per_shard=11, valid=("half < 20",), **changes)
    fresh = make_study(tmp_path / "fresh", per_shard=11, valid=("half < 20",), **changes)
    require_same(found, ended(fresh))
    assert found.origins.shards == NUM


def test_an_output_that_no_shard_has_is_refused_before_anything_is_written(tmp_path):
    study = ended(make_study(tmp_path / "ws", fields=FIELDS[:2]))
    with pytest.raises(UsageError, match="field 'note' of function step 'sim' cannot be collected again"):
        again(study, tmp_path / "out", fields=(*FIELDS[:2], FIELDS[4]))
    assert not (tmp_path / "out").exists()


def test_a_filter_of_a_function_stays_or_is_named(tmp_path):
    valid = ("count % 4 != 0",)
    study = ended(make_study(tmp_path / "ws", valid=valid))
    with pytest.raises(ShardError, match="what its filter 'count % 4 != 0' rejected"):
        again(study, tmp_path / "out", valid=())
    more = (*valid, "energy < 1000020")
    found = again(study, tmp_path / "other", valid=more, samples_per_shard=13)
    require_same(found, ended(make_study(tmp_path / "fresh", valid=more, per_shard=13)))


@pytest.mark.parametrize("slice_bytes", [64, 1000, 1 << 20])
def test_rows_with_gaps_between_them_in_slices_of_any_size(tmp_path, monkeypatch, slice_bytes):
    monkeypatch.setattr(old_shards, "SLICE_BYTES", slice_bytes)
    study = ended(cmd_study(tmp_path / "ws", valid=("count % 4 != 1",)))
    shutil.rmtree(study.workspace.path / "sim")
    changes = {"valid": ("count % 4 != 1", "count % 5 != 2"), "samples_per_shard": 17}
    found = again(study, tmp_path / "out", **changes)
    require_same(found, ended(cmd_study(tmp_path / "fresh", **renamed(changes))))
    with merlin.open_shards(tmp_path / "out") as data:
        for i, task in enumerate(data["count"][:].tolist()):
            assert (
                data["hits"][i].tolist() == [float(task)] * (task % 4) and data["note"][i] == f"täsk {task}"
            )


@pytest.mark.parametrize("has_files", [True, False], ids=["files", "shards"])
def test_a_function_that_left_files_too(tmp_path, has_files):
    tag = PlannedField(name="tag", dtype="int64", file="out.json", key="count")
    more = (PlannedField(name="note", kind="text", file="note.txt"),) if has_files else ()

    def make(path, fields, **given):
        study = make_study(path, fields=fields, **given)
        for task in range(NUM):
            folder = study.workspace.task_dir(study.sources[0], task)
            folder.mkdir(parents=True)
            for name, content in files_of(task).items():
                (folder / name).write_bytes(
                    content if isinstance(content, bytes) else json.dumps(content).encode()
                )
        return ended(study)

    study = make(tmp_path / "ws", (*FIELDS[:3], tag))
    fields = (*FIELDS[:2], tag, *more)
    if not has_files:
        shutil.rmtree(study.workspace.path / "sim")
    found = again(study, tmp_path / "out", fields=fields, samples_per_shard=8)
    require_same(found, make(tmp_path / "fresh", fields, per_shard=8))


def test_a_filter_that_means_something_else_now_is_not_the_same():
    a = PlannedField(name="x", file="out.json", key="a")
    b = replace(a, key="b")
    derived = PlannedField(name="y", expression="x + 1")
    study = make_definition((a, derived), ("y > 0", "x > 0"))
    assert kept_filters(study, make_definition((a, derived), ("y > 0",))) == {"y > 0"}
    assert kept_filters(study, make_definition((b, derived), ("y > 0", "x > 0"))) == set()
    assert stored_fields(study, make_definition((b,), ())) == {}
    assert stored_fields(study, make_definition((replace(a, name="z", units="m"),), ())) == {"z": a}
    assert stored_fields(study, make_definition((replace(a, dtype="float32"),), ())) == {}


def make_definition(fields, valid):
    return Aggregate(sources=("sim",), fields=fields, valid=valid)


@pytest.mark.parametrize("per_shard", [7, 20, 100])
def test_extensions_give_their_rows(tmp_path, per_shard):
    def grow(path, **more):
        study = make_study(path, num=40, **more)
        run(study)
        publish(study)
        size = study.aggregate.aggregate.samples_per_shard
        extension = make_extension(study, 1, 25, 40, 40, -(-40 // size))
        run(extension, first=40)
        publish(extension)
        return study

    study = grow(tmp_path / "ws")
    before = tree(study.workspace.path)
    found = again(study, tmp_path / "out", samples_per_shard=per_shard, compression="zstd")
    require_same(found, grow(tmp_path / "fresh", per_shard=per_shard))
    assert [part.workspace for part in found.data.parts] == ["", "extensions/001"]
    assert tree(study.workspace.path) == before
    with merlin.open_shards(tmp_path / "out") as data:
        np.testing.assert_array_equal(data["count"][:], values_of(np.arange(65))["count"])


def test_a_damaged_old_shard_is_refused(tmp_path):
    study = ended(make_study(tmp_path / "ws"))
    with merlin.open_shards(study.directory) as data:
        needle = np.asarray(data["image"][25]).tobytes()
    path = study.directory / "shard_00001.h5"
    content = path.read_bytes()
    path.write_bytes(content.replace(needle, bytes(len(needle))))
    with pytest.raises(ShardError, match=r"(?s)tasks 25 of 'sim' ended ok.*verify .* --repair"):
        again(study, tmp_path / "out", samples_per_shard=5)
    assert not (tmp_path / "out" / "manifest.json").exists()


class Killed(BaseException):
    pass


def test_a_killed_one_goes_on_where_it_was(tmp_path, monkeypatch):
    study = ended(cmd_study(tmp_path / "ws"))
    out = tmp_path / "out"
    kill_after(monkeypatch, 3)
    with pytest.raises(Killed):
        again(study, out, samples_per_shard=6)
    monkeypatch.undo()
    assert not (out / "manifest.json").exists()
    written = {p.name: p.stat().st_ino for p in out.glob("shard_*.h5")}
    assert len(written) == 3
    found = again(study, out, samples_per_shard=6)
    assert found.num_kept == 3
    assert {name: (out / name).stat().st_ino for name in written} == written
    require_same(found, ended(cmd_study(tmp_path / "fresh", per_shard=6)))
    assert found.origins.files == NUM
    times = tree(out)
    assert again(study, out, samples_per_shard=6).data == found.data and tree(out) == times


def kill_after(monkeypatch, num: int) -> None:
    real = engine._Todo.note

    def note(self, done):
        real(self, done)
        if len(self.done) == num:
            raise Killed

    monkeypatch.setattr(engine._Todo, "note", note)


def test_shards_of_another_definition_are_not_kept(tmp_path, monkeypatch):
    study = ended(cmd_study(tmp_path / "ws"))
    kill_after(monkeypatch, 3)
    with pytest.raises(Killed):
        again(study, tmp_path / "out", samples_per_shard=6)
    monkeypatch.undo()
    found = again(study, tmp_path / "out", samples_per_shard=25)
    assert found.num_kept == 0
    require_same(found, ended(cmd_study(tmp_path / "fresh", per_shard=25)))
    assert len(list((tmp_path / "out").glob("shard_*"))) == 4


def test_what_has_run_again_since_is_collected_again(tmp_path, monkeypatch):
    files = {task: files_of(task) for task in range(NUM)}
    study = ended(make_cmd_study(tmp_path / "ws", files, JSON_FIELDS))
    finished = again(study, tmp_path / "finished", samples_per_shard=6)
    kill_after(monkeypatch, 3)
    with pytest.raises(Killed):
        again(study, tmp_path / "killed", samples_per_shard=6)
    monkeypatch.undo()
    files[8] = files_of(8) | {"note.txt": b"another"}
    (study.workspace.task_dir(study.sources[0], 8) / "note.txt").write_bytes(b"another")
    with LedgerWriter(study.workspace.ledger_dir, "w1", sync=False) as ledger:
        for outcome in (RESET, Outcome.OK):
            ledger.append(RangeRecord(instance="sim", lo=8, hi=9, outcome=outcome))
    with pytest.raises(
        UsageError, match="holds a data set, collected by another definition, or before tasks ran"
    ):
        again(study, tmp_path / "finished", samples_per_shard=6)
    found = again(study, tmp_path / "killed", samples_per_shard=6)
    assert found.num_kept == 2 and found.data.content_digest != finished.data.content_digest
    require_same(found, ended(make_cmd_study(tmp_path / "fresh", files, JSON_FIELDS, per_shard=6)))
    assert again(study, tmp_path / "killed", samples_per_shard=6).data == found.data


def test_a_damaged_shard_of_a_killed_one_is_made_again(tmp_path, monkeypatch):
    study = ended(cmd_study(tmp_path / "ws"))
    kill_after(monkeypatch, 2)
    with pytest.raises(Killed):
        again(study, tmp_path / "out", samples_per_shard=6)
    monkeypatch.undo()
    (tmp_path / "out" / "shard_00001.h5").unlink()
    found = again(study, tmp_path / "out", samples_per_shard=6)
    assert found.num_kept == 1
    require_same(found, ended(cmd_study(tmp_path / "fresh", per_shard=6)))


def test_a_place_that_is_not_free_is_refused(tmp_path):
    study = ended(cmd_study(tmp_path / "ws"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    places = [
        *(tmp_path / "full", study.directory, study.directory / "inner", study.workspace.path),
        *(study.workspace.info / "x", study.workspace.path / "sim", study.workspace.path / "sim" / "deep"),
        study.workspace.path / "extensions" / "new",
    ]
    before = tree(tmp_path)
    for place in places:
        with pytest.raises(MerlinError, match="--out"):
            again(study, place, samples_per_shard=6)
    again(study, tmp_path / "out", samples_per_shard=6)
    with pytest.raises(UsageError, match="holds a data set"):
        again(study, tmp_path / "out", samples_per_shard=7)
    shutil.rmtree(tmp_path / "out")
    assert tree(tmp_path) == before


def test_sources_that_the_study_does_not_have_are_refused(tmp_path):
    study = ended(cmd_study(tmp_path / "ws"))
    with pytest.raises(UsageError, match="'other', which is no step of the study"):
        again(study, tmp_path / "out", sources=("other",))


def test_a_data_set_of_another_name_beside_the_first_one(tmp_path):
    study = ended(cmd_study(tmp_path / "ws"))
    new = replace(defined(study, fields=JSON_FIELDS[:1]), id="second")
    found = collect_again(recollection(members(study.workspace), new, tmp_path / "out", "d2"))
    assert found.data.aggregate == "second" and verify(tmp_path / "out").ok
    assert found.data.study["study_id"] == "s1" and found.data.study["spec_digest"] == "d2"


def test_a_request_can_be_sent_to_a_process(tmp_path):
    study = ended(make_study(tmp_path / "ws", kind=StepKind.FUNCTION))
    write_plan(study.workspace.plan_path, study.workspace.plan)
    request = recollection(members(study.workspace), defined(study), tmp_path / "out")
    assert request.shares[0].rows.num_rows == NUM
    sent: Recollection = pickle.loads(pickle.dumps(request))
    assert sent == request and sent.definition == request.definition
