"""A data set that grows: parts are merged, taken out again, and replaced; a reader sees the old or the new one."""

import h5py
import numpy as np
import pytest
from msgspec.structs import replace
from shard_study import make_study, values_of

import merlin
from merlin.errors import NotADataSetError, ShardError
from merlin.ledger.records import RESET, RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan import PlannedField
from merlin.plan.plan_io import write_plan
from merlin.plan.tasks import Outcome
from merlin.shards.format.manifest_file import read_manifest, source_workspace
from merlin.shards.format.rows import row_map
from merlin.shards.proving.verify import verify
from merlin.shards.writing import growing
from merlin.shards.writing.gather import write_shard
from merlin.shards.writing.manifest import make_part, write_manifest
from merlin.workspace.directory import Workspace


def make_extension(study, number, num, first_sample, first_row, first_shard):
    """An extension of a hand-made study; its plan is on disk, as the study's is from now on."""
    workspace = study.workspace
    if not workspace.plan_path.exists():
        write_plan(workspace.plan_path, workspace.plan)
    more = make_study(
        workspace.path / f"extensions/{number:03d}", num=num,
        per_shard=study.aggregate.aggregate.samples_per_shard,
        params=tuple(source.params for source in study.sources), fields=study.aggregate.aggregate.fields,
        compression=study.aggregate.aggregate.compression, valid=study.aggregate.aggregate.valid,
    )  # fmt: skip
    instances = []
    for instance in more.workspace.plan.instances:
        if instance.aggregate is not None:
            grown = replace(instance.aggregate, first_row=first_row, first_shard=first_shard)
            instance = replace(instance, aggregate=grown)
        instances.append(instance)
    plan = replace(
        more.workspace.plan, study_id=f"e{number}", extension=number, instances=tuple(instances),
        samples=replace(more.workspace.plan.samples, first=first_sample),
    )  # fmt: skip
    np.save(more.workspace.info / "samples.npy", np.arange(2.0 * num).reshape(num, 2) + 2 * first_sample)
    more.workspace = Workspace(more.workspace.path, plan)
    more.sources = [more.workspace.instance(source.id) for source in more.sources]
    more.aggregate = more.workspace.instance("collect")
    more.manifest = more.workspace.instance("collect.manifest")
    write_plan(more.workspace.plan_path, plan)
    more.first = first_sample
    return more


def run(study, *, first=0, chunk=7, outputs=None):
    """Everything but the manifest."""
    for source, step in enumerate(study.sources):
        for lo in range(0, step.num_tasks, chunk):
            hi = min(lo + chunk, step.num_tasks)
            tasks = first + np.arange(lo, hi)
            made = values_of(tasks, source) if outputs is None else outputs(tasks)
            study.collect(lo, hi, source=source, outputs=made)
    rows = row_map(study.workspace, study.aggregate)
    for shard in rows.shards:
        absent = [(first_row + t, first_row + t + 1) for first_row, t in gone(study, rows)]
        write_shard(study.workspace, study.aggregate, shard, absent)
    study.record()


def gone(study, rows):
    for source, task in [*study.failures, *study.skipped, *study.not_run]:
        yield rows.first_row(study.sources[source].id), task


def publish(study):
    write_manifest(study.workspace, study.manifest)


def mark_manifest_done(study):
    with LedgerWriter(study.workspace.ledger_dir, "w1", sync=False) as ledger:
        ledger.append(RangeRecord(instance="collect.manifest", lo=0, hi=1, outcome=Outcome.OK))


def grown(tmp_path, *, num=40, more=25, params=({},), not_run=(), outputs=None, **given):
    study = make_study(tmp_path / "ws", num=num, params=params, **given)
    study.not_run = set(not_run)
    run(study, outputs=outputs)
    publish(study)
    rows = num * len(params)
    extension = make_extension(study, 1, more, num, rows, -(-rows // 20))
    return study, extension


def digests(directory):
    return {
        entry.file: (entry.file_digest, entry.content_digest) for entry in read_manifest(directory).shards
    }


def test_an_extension_adds_rows_and_leaves_the_old_shards_alone(tmp_path):
    study, extension = grown(tmp_path)
    before, files = digests(study.directory), {p: p.read_bytes() for p in study.directory.glob("shard_*")}
    run(extension, first=40)
    assert len(merlin.open_shards(study.directory)) == 40  # until the manifest is replaced
    publish(extension)
    assert verify(study.directory).ok
    after = digests(study.directory)
    assert {name: after[name] for name in before} == before
    assert {p: p.read_bytes() for p in files} == files
    with merlin.open_shards(study.directory) as ens:
        np.testing.assert_array_equal(ens.sample_id, np.arange(65))
        for name, values in values_of(np.arange(65)).items():
            np.testing.assert_array_equal(ens[name][:], values)
        np.testing.assert_array_equal(ens.inputs.array(), np.arange(130.0).reshape(65, 2))


def test_a_grown_data_set_is_the_one_made_at_once(tmp_path):
    study, extension = grown(tmp_path)
    run(extension, first=40)
    publish(extension)
    whole = make_study(tmp_path / "whole", num=65)
    run(whole)
    publish(whole)
    ours, theirs = read_manifest(study.directory), read_manifest(whole.directory)
    assert ours.content_digest == theirs.content_digest
    assert ours.splits == theirs.splits and ours.counts == theirs.counts
    for a, b in zip(ours.fields, theirs.fields, strict=True):
        if a.statistics:
            np.testing.assert_allclose(a.statistics.mean, b.statistics.mean, rtol=1e-12)
            np.testing.assert_allclose(a.statistics.m2, b.statistics.m2, rtol=1e-9)
    with h5py.File(study.directory / "ensemble.h5") as file:
        np.testing.assert_array_equal(file["sample_id"][()], np.arange(65))


def test_filters_and_ragged_fields_grow(tmp_path):
    fields = (
        PlannedField(name="count", dtype="int64"),
        PlannedField(name="hits", kind="ragged", dtype="float32", ragged=True),
    )
    more = {"fields": fields, "valid": ("count % 3 != 0", "count < 60"), "compression": "gzip"}

    def outputs(tasks):
        hits = np.empty(len(tasks), dtype=object)
        hits[:] = [np.full(t % 4, t, dtype=np.float32) for t in tasks]
        return {"count": tasks, "hits": hits}

    study, extension = grown(tmp_path, outputs=outputs, **more)
    whole = make_study(tmp_path / "whole", num=65, **more)
    run(extension, first=40, outputs=outputs)
    run(whole, outputs=outputs)
    publish(extension)
    publish(whole)
    ours, theirs = read_manifest(study.directory), read_manifest(whole.directory)
    assert ours.counts == theirs.counts and ours.counts.filtered == 22 + 3
    assert ours.content_digest == theirs.content_digest
    for a, b in zip(ours.filters, theirs.filters, strict=True):
        rows = [np.concatenate([np.arange(*r) for r in f.rows]) for f in (a, b)]
        assert a.expression == b.expression and np.array_equal(*rows)
    assert ours.fields[1].lengths.count == theirs.fields[1].lengths.count
    assert verify(study.directory).ok
    with (
        h5py.File(study.directory / "ensemble.h5") as mine,
        h5py.File(whole.directory / "ensemble.h5") as other,
    ):
        for name in ("fields/hits/values", "fields/hits/offsets", "fields/count"):
            np.testing.assert_array_equal(mine[name], other[name])


def test_a_last_shard_that_is_not_full_stays_so(tmp_path):
    study, extension = grown(tmp_path, num=50)
    run(extension, first=50)
    publish(extension)
    shards = read_manifest(study.directory).shards
    assert [(s.lo, s.hi) for s in shards] == [(0, 20), (20, 40), (40, 50), (50, 70), (70, 75)]
    assert verify(study.directory).ok


def test_rows_of_an_extension_follow_those_of_all_parameters(tmp_path):
    study, extension = grown(tmp_path, num=12, more=8, params=({"A": 1}, {"A": 2}))
    run(extension, first=12)
    publish(extension)
    data = read_manifest(study.directory)
    assert [(s.workspace, s.first_row, s.first_sample, s.num_tasks) for s in data.sources] == [
        ("", 0, 0, 12), ("", 12, 0, 12), ("extensions/001", 24, 12, 8), ("extensions/001", 32, 12, 8),
    ]  # fmt: skip
    with merlin.open_shards(study.directory) as ens:
        ids = [*range(12), *range(12), *range(12, 20), *range(12, 20)]
        np.testing.assert_array_equal(ens.sample_id, ids)
        np.testing.assert_array_equal(ens.parameters["A"][:], [1] * 12 + [2] * 12 + [1] * 8 + [2] * 8)


def test_an_extension_without_rows_has_the_input_types_of_the_study(tmp_path):
    study = make_study(tmp_path / "ws", num=40)
    extension = make_extension(study, 1, 25, 40, 40, 2)
    for each, num in ((study, 40), (extension, 25)):
        texts = np.array([(i, f"mode {i}") for i in range(num)], [("x", "f8"), ("y", "U8")])
        np.save(each.workspace.info / "samples.npy", texts)
    extension.not_run = {(0, t) for t in range(25)}
    run(study)
    publish(study)
    run(extension, first=40)
    publish(extension)
    data = read_manifest(study.directory)
    assert (data.counts.ok, data.counts.missing) == (40, 25) and verify(study.directory).ok


def test_splits_stay_when_samples_are_added(tmp_path):
    study, extension = grown(tmp_path)
    with merlin.open_shards(study.directory) as ens:
        before = {name: set(ens.sample_id[rows]) for name, rows in ens.splits.items()}
    run(extension, first=40)
    publish(extension)
    with merlin.open_shards(study.directory) as ens:
        for name, rows in ens.splits.items():
            assert {i for i in ens.sample_id[rows] if i < 40} == before[name]
        assert read_manifest(study.directory).splits.counts == {k: len(v) for k, v in ens.splits.items()}


def test_parts_come_out_as_they_went_in(tmp_path):
    study, extension = grown(tmp_path)
    extension.failures = {(0, 3): "bad"}
    extension.not_run = {(0, 5)}
    run(extension, first=40)
    parts = [make_part(s.workspace, s.aggregate) for s in (study, extension)]
    assert growing.split(growing.merge(parts)) == parts
    publish(extension)
    stored = growing.split(read_manifest(study.directory))
    for part in (*parts, *stored):
        part.study.pop("finished")
    assert stored == parts


def test_fields_in_another_order_keep_their_statistics(tmp_path):
    study, extension = grown(tmp_path)
    aggregate = extension.aggregate.aggregate
    turned = replace(aggregate, fields=aggregate.fields[::-1])
    plan = extension.workspace.plan
    instances = tuple(i if i.aggregate is None else replace(i, aggregate=turned) for i in plan.instances)
    extension.workspace = Workspace(extension.workspace.path, replace(plan, instances=instances))
    extension.aggregate = extension.workspace.instance("collect")
    extension.manifest = extension.workspace.instance("collect.manifest")
    run(extension, first=40)
    publish(extension)
    before = read_manifest(study.directory)
    publish(study)  # takes the parts out, and merges them again
    after = read_manifest(study.directory)
    assert after.fields == before.fields and after.columns == before.columns and verify(study.directory).ok


def test_a_part_is_replaced_when_its_study_runs_again(tmp_path):
    study, extension = grown(tmp_path, not_run={(0, 7)})
    extension.failures = {(0, 3): "bad"}
    run(extension, first=40)
    publish(extension)
    data = read_manifest(study.directory)
    assert (data.counts.ok, data.counts.failed, data.counts.missing) == (63, 1, 1)
    assert [(f.workspace, f.tasks) for f in data.failures] == [("extensions/001", ((3, 4),))]
    study.not_run = set()
    study.collect(7, 8)
    with LedgerWriter(study.workspace.ledger_dir, "w2", sync=False) as ledger:
        ledger.append(RangeRecord(instance="sim", lo=7, hi=8, outcome=Outcome.OK))
    publish(study)
    data = read_manifest(study.directory)
    assert (data.counts.ok, data.counts.failed, data.counts.missing) == (64, 1, 0)
    assert verify(study.directory).ok


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_extension_waits_for_the_study_before_it(tmp_path, is_recorded):
    study = make_study(tmp_path / "ws", num=40)
    extension = make_extension(study, 1, 25, 40, 40, 2)
    run(extension, first=40)
    publish(extension)
    if is_recorded:
        mark_manifest_done(extension)  # else it still cleans up, or was killed while it did
    with pytest.raises(NotADataSetError):
        read_manifest(study.directory)
    run(study)
    publish(study)  # takes in what waited for it
    assert read_manifest(study.directory).counts.ok == 65
    assert verify(study.directory).ok


def test_an_extension_that_runs_again_does_not_wait_any_more(tmp_path):
    study = make_study(tmp_path / "ws", num=40)
    extension = make_extension(study, 1, 25, 40, 40, 2)
    run(extension, first=40)
    publish(extension)
    with LedgerWriter(extension.workspace.ledger_dir, "w2", sync=False) as ledger:
        ledger.append(RangeRecord(instance="sim", lo=3, hi=4, outcome=RESET))
    run(study)
    publish(study)
    assert read_manifest(study.directory).counts.planned == 40


def test_a_second_extension_waits_for_the_first(tmp_path):
    study, first = grown(tmp_path)
    second = make_extension(study, 2, 10, 65, 65, 4)
    run(second, first=65)
    publish(second)
    mark_manifest_done(second)
    assert read_manifest(study.directory).counts.planned == 40
    run(first, first=40)
    publish(first)
    data = read_manifest(study.directory)
    assert data.counts.planned == 75
    assert [s.workspace for s in data.sources] == ["", "extensions/001", "extensions/002"]


@pytest.mark.parametrize("stop_before", ["manifest.json", "ensemble.h5"])
def test_a_kill_between_two_renames_leaves_a_data_set_that_verifies(tmp_path, monkeypatch, stop_before):
    study, extension = grown(tmp_path)
    run(extension, first=40)

    class Killed(BaseException):
        pass

    def write_text(path, text):
        if stop_before == path.name:
            raise Killed
        (path.parent / "new").write_text(text)
        (path.parent / "new").replace(path)

    def lead(link, target):
        raise Killed

    monkeypatch.setattr(growing, "write_text", write_text)
    monkeypatch.setattr(growing, "_lead", lead)
    with pytest.raises(Killed):
        publish(extension)
    assert verify(study.directory).ok
    assert read_manifest(study.directory).counts.ok == (40 if stop_before == "manifest.json" else 65)
    monkeypatch.undo()
    publish(extension)
    assert verify(study.directory).ok and read_manifest(study.directory).counts.ok == 65
    name = read_manifest(study.directory).virtual.file
    assert sorted(p.name for p in study.directory.glob("ensemble*")) == ["ensemble.h5", name]
    with h5py.File(study.directory / "ensemble.h5") as file:
        assert len(file["row"]) == 65


def test_parts_that_do_not_fit_are_refused(tmp_path):
    study, extension = grown(tmp_path)
    run(extension, first=40)
    ours, theirs = (make_part(s.workspace, s.aggregate) for s in (study, extension))
    other = replace(theirs, fields=(replace(theirs.fields[0], dtype="<f4"), *theirs.fields[1:]))
    with pytest.raises(ShardError, match="'fields/energy' is"):
        growing.merge([ours, other])
    with pytest.raises(ShardError, match="samples_per_shard"):
        growing.merge([ours, replace(theirs, samples_per_shard=7)])
    assert growing.merge([ours]) == ours


def test_a_source_knows_the_workspace_to_run_it_again_in(tmp_path):
    study, extension = grown(tmp_path)
    run(extension, first=40)
    publish(extension)
    data = read_manifest(study.directory)
    assert [(p.workspace, p.lo, p.hi, p.study["study_id"]) for p in data.parts] == [
        ("", 0, 40, "s1"), ("extensions/001", 40, 65, "e1"),
    ]  # fmt: skip
    growing.require_members(study.directory, [study.workspace, extension.workspace])
    with pytest.raises(ShardError, match="rows of extensions/001, which is gone"):
        growing.require_members(study.directory, [study.workspace])
    assert [data.study_id_of(row) for row in (0, 39, 40, 64)] == ["s1", "s1", "e1", "e1"]
    assert [source_workspace(data, s) for s in data.sources] == [
        study.workspace.path, extension.workspace.path,
    ]  # fmt: skip
