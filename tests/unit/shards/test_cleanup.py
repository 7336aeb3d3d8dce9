"""Clean-up: what may go goes, and nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest
from msgspec.structs import replace
from shard_study import make_cmd_study, make_study

from merlin.base.compression import NAMES
from merlin.errors import ShardError
from merlin.ledger.records import RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.layout import FINISHED
from merlin.plan.plan import Edge, PlannedField, StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.writing import cleanup
from merlin.shards.writing.cleanup import clean_after_shard, clean_data_set, prove
from merlin.shards.writing.manifest import write_manifest
from merlin.workspace.directory import Workspace

FIELDS = (
    PlannedField(name="e", file="o.json", key="e"),
    PlannedField(name="t", kind="text", file="note.txt"),
)


def study_of(path, num=60, **more):
    """A shell step whose task t left e = t; 3 failed, and what is below 5 is filtered."""
    files = {t: {"o.json": {"e": t}, "note.txt": b"fine", FINISHED: b""} for t in range(num)}
    study = make_cmd_study(path, files, FIELDS, **({"cleanup": True, "valid": ("e >= 5",)} | more))
    study.failures = {(0, 3): "broke"}
    ok = np.ones(num, bool)
    ok[3] = False
    study.collect(0, num, ok=ok)
    return study


def with_step(study, step):
    """The study with another step in its plan, which the ledger may know."""
    plan = replace(study.workspace.plan, instances=(*study.workspace.plan.instances, step))
    study.workspace = Workspace(study.workspace.path, plan)
    return study


def ended(study, id, *ranges):
    ledger = LedgerWriter(study.workspace.ledger_dir, "w1", sync=False)
    for lo, hi, outcome in ranges:
        ledger.append(RangeRecord(instance=id, lo=lo, hi=hi, outcome=outcome))
    ledger.close()


def left(study):
    """Tasks whose directory is there."""
    sim = study.sources[0]
    return [t for t in range(sim.num_tasks) if study.workspace.task_dir(sim, t).is_dir()]


def post(kind="same", num=60, **more):
    edge = Edge(source="sim", kind=kind, group="sim")
    return StepInstance(
        id="post", step="post", kind=StepKind.CMD, num_tasks=num, per_sample=num > 1, edges=(edge,), **more
    )


def test_the_samples_of_a_verified_shard_go_and_no_other(tmp_path):
    study = study_of(tmp_path)
    info = study.write_shard(0)
    assert clean_after_shard(study.workspace, study.aggregate, info) == 15
    assert left(study) == [0, 1, 2, 3, 4, *range(20, 60)]


def test_nothing_goes_unless_it_is_asked_for(tmp_path):
    study = study_of(tmp_path, cleanup=False)
    assert clean_after_shard(study.workspace, study.aggregate, study.write_shard(0)) == 0
    study.finish()
    assert len(left(study)) == 60


def test_nothing_goes_if_the_shard_is_damaged(tmp_path):
    study = study_of(tmp_path)
    info = study.write_shard(0)
    path = study.directory / info.file
    for place in (path.stat().st_size // 2, 40, info.datasets[0].extents[0].offset + 3):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(ShardError):
            clean_after_shard(study.workspace, study.aggregate, info)
        data[place] ^= 1
        path.write_bytes(data)
    assert len(left(study)) == 60
    prove(path, info)


@pytest.mark.parametrize("codec", NAMES)
def test_the_proof_decodes_what_is_compressed(tmp_path, codec, monkeypatch):
    study = make_study(tmp_path, num=20, compression=codec)
    study.collect_all()
    info = study.write_shard(0)
    path = study.directory / info.file
    prove(path, info)
    first = info.datasets[0]
    wrong = replace(
        info, datasets=(replace(first, blocks=("0" * 64,) * len(first.blocks)), *info.datasets[1:])
    )
    if codec != "none":  # there the stored bytes are the values
        with pytest.raises(ShardError, match=first.name):
            prove(path, wrong)


def test_a_text_that_reads_differently_is_seen(tmp_path):
    study = study_of(tmp_path)
    info = study.write_shard(0)
    datasets = tuple(replace(d, blocks=("0" * 64,)) if d.dtype == "text" else d for d in info.datasets)
    with pytest.raises(ShardError, match="'fields/t' differs"):
        prove(study.directory / info.file, replace(info, datasets=datasets))


def test_being_killed_while_files_go_costs_nothing(tmp_path, monkeypatch):
    study = study_of(tmp_path)
    info = study.write_shard(0)
    before = info.content_digest
    gone = []

    def remove(directory):
        if len(gone) == 7:
            os.unlink(f"{directory}/{FINISHED}")
            raise KeyboardInterrupt
        gone.append(directory)
        real(directory)

    real = cleanup.remove_task_files
    monkeypatch.setattr(cleanup, "remove_task_files", remove)
    with pytest.raises(KeyboardInterrupt):
        clean_after_shard(study.workspace, study.aggregate, info)
    monkeypatch.undo()
    # the task of the shard has not ended: it is run again, and finds the rows in the bundles
    again = study.write_shard(0)
    assert again.content_digest == before
    clean_after_shard(study.workspace, study.aggregate, again)
    assert left(study) == [0, 1, 2, 3, 4, *range(20, 60)]


def test_the_manifest_removes_what_is_left_and_the_empty_directories_above(tmp_path):
    study = study_of(tmp_path, num=60)
    study.finish()
    assert left(study) == [0, 1, 2, 3, 4]
    assert sorted(p.name for p in (study.workspace.path / "sim").iterdir()) == ["00"]
    write_manifest(study.workspace, study.manifest)  # again, as after a kill
    assert left(study) == [0, 1, 2, 3, 4]


def test_the_shard_is_written_again_without_the_files(tmp_path):
    study = study_of(tmp_path)
    study.not_run = {(0, 10)}
    study.finish()
    assert 10 in left(study)  # it was collected, but its task has not ended
    assert left(study) == [0, 1, 2, 3, 4, 10]
    study.not_run = set()
    assert study.write_shard(0).num_rows == 15


class TestOthersNeedTheFiles:
    def test_a_step_on_the_same_samples_keeps_those_that_it_has_not_ended(self, tmp_path):
        study = with_step(study_of(tmp_path), post())
        info = study.write_shard(0)
        assert clean_after_shard(study.workspace, study.aggregate, info) == 0
        ended(
            study,
            "post",
            (0, 10, Outcome.OK),
            (10, 12, Outcome.FAILED),
            (12, 16, Outcome.OK),
            (20, 50, Outcome.OK),
        )
        study.finish()
        assert left(study) == [0, 1, 2, 3, 4, 10, 11, 16, 17, 18, 19, *range(50, 60)]

    def test_a_step_that_ran_on_another_ones_failure_keeps_what_it_needs_to_run_again(self, tmp_path):
        check = replace(post(), id="check", step="check", edges=(), on_failure="continue")
        edge = Edge(source="check", kind="same", group="check")
        study = with_step(study_of(tmp_path), check)
        study = with_step(study, replace(post(), edges=(*post().edges, edge)))
        ended(study, "check", (0, 30, Outcome.OK), (30, 32, Outcome.FAILED), (32, 60, Outcome.OK))
        ended(study, "post", (0, 60, Outcome.OK))
        study.finish()
        assert left(study) == [0, 1, 2, 3, 4, 30, 31]

    def test_a_step_that_waits_for_all_samples_keeps_all_until_it_has_ended_ok(self, tmp_path):
        study = with_step(study_of(tmp_path), post("all", num=1))
        study.finish()
        assert len(left(study)) == 60
        ended(study, "post", (0, 1, Outcome.FAILED))
        assert clean_data_set(study.workspace, study.aggregate) == 0

    def test_a_step_that_names_the_directory_counts_without_an_edge(self, tmp_path):
        step = replace(post(), edges=(), command=f"cat {tmp_path}/sim/$(MERLIN_SAMPLE_PATH)/o.json")
        study = with_step(study_of(tmp_path), step)
        study.finish()
        assert len(left(study)) == 60

    def test_another_data_set_of_the_same_samples_keeps_the_files_until_its_shards_are_written(
        self, tmp_path
    ):
        study = study_of(tmp_path)
        other = replace(study.aggregate, id="other", step="other", num_tasks=2)
        other = replace(other, aggregate=replace(other.aggregate, samples_per_shard=40, cleanup=False))
        study = with_step(study, other)
        study.finish()
        assert len(left(study)) == 60
        ended(study, "other", (0, 1, Outcome.OK))
        clean_data_set(study.workspace, study.aggregate)
        assert left(study) == [0, 1, 2, 3, 4, *range(40, 60)]


def test_links_are_removed_and_not_followed(tmp_path):
    study = study_of(tmp_path / "w")
    keep = tmp_path / "precious"
    keep.mkdir()
    (keep / "data").write_text("x")
    (study.workspace.task_dir(study.sources[0], 7) / "link").symlink_to(keep)
    clean_after_shard(study.workspace, study.aggregate, study.write_shard(0))
    assert (keep / "data").exists()
    assert 7 not in left(study)


def test_a_function_step_has_nothing_to_clean(tmp_path):
    study = make_study(tmp_path, cleanup=True)
    study.collect_all()
    study.finish()
