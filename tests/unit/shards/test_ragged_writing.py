"""Fields of variable length and graphs: from functions and files into shards."""

from __future__ import annotations

import io
import json

import h5py
import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_study import make_cmd_study, make_study

from merlin.errors import ShardError
from merlin.plan.plan import PlannedField
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.format.segments import Ragged
from merlin.shards.format.shard_info import read_info
from merlin.shards.writing.bundle import list_bundles
from merlin.shards.writing.outputs import item_rows

TRACK = PlannedField(name="track", kind="ragged", dtype="float32", shape=(3,), ragged=True, output="track")
MASS = PlannedField(name="mass", kind="ragged", ragged=True, output="mass")


def member(role, shape=(), **more):
    more.setdefault("dtype", "int64" if role == "edges" else "float32")
    ragged = role != "targets"
    return PlannedField(
        name=f"mol.{role}", kind="ragged" if ragged else "scalar", shape=shape, ragged=ragged, graph="mol", role=role,
        **({"output": f"mol.{role}"} | more),
    )  # fmt: skip


GRAPH = (
    member("nodes", (4,)),
    member("positions", (3,)),
    member("edges", (2,)),
    member("edge_features", (1,)),
    member("node_targets"),
    member("targets"),
)


def tracks(lengths):
    return [np.full((n, 3), i, np.float32) + np.arange(n)[:, None] for i, n in enumerate(lengths)]


def as_objects(rows):
    out = np.empty(len(rows), dtype=object)
    out[:] = [np.asarray(row) for row in rows] if len(rows) != 1 else None
    if len(rows) == 1:
        out[0] = np.asarray(rows[0])
    return out


def stored(study, path, field):
    """The items of each row in the shards, by row number."""
    found = {}
    for shard in sorted(study.directory.glob("shard_*.h5")):
        with h5py.File(shard) as file:
            values, offsets = file[path]["values"][()], file[path]["offsets"][()]
            for i, row in enumerate(file["row"][()].tolist()):
                found[row] = values[offsets[i] : offsets[i + 1]]
    return found


@settings(max_examples=repeats(12, 250), deadline=None)
@given(data=st.data(), compression=st.sampled_from(["none", "zstd"]))
def test_what_was_collected_is_what_is_stored_however_the_run_was_cut(tmp_path_factory, data, compression):
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=25))
    num = len(lengths)
    study = make_study(
        tmp_path_factory.mktemp("ragged") / "w",
        num=num,
        per_shard=7,
        fields=(TRACK, MASS),
        compression=compression,
    )
    rows = tracks(lengths)
    lo = 0
    while lo < num:
        hi = min(num, lo + data.draw(st.integers(1, 10)))
        ok = np.array(data.draw(st.lists(st.booleans(), min_size=hi - lo, max_size=hi - lo)))
        study.not_run |= {(0, task) for task in range(lo, hi) if not ok[task - lo]}
        outputs = {"track": as_objects(rows[lo:hi]), "mass": as_objects([row[:, 0] for row in rows[lo:hi]])}
        study.collect(lo, hi, ok=ok, outputs=outputs)
        lo = hi
    study.finish()
    kept = [i for i in range(num) if (0, i) not in study.not_run]
    for path, expected in (("fields/track", rows), ("fields/mass", [row[:, 0] for row in rows])):
        found = stored(study, path, TRACK)
        assert sorted(found) == kept
        for i in kept:
            np.testing.assert_array_equal(found[i], expected[i])
    with h5py.File(study.directory / "ensemble.h5") as file:
        np.testing.assert_array_equal(
            file["fields/track/offsets"][()], np.cumsum([0, *(lengths[i] for i in kept)])
        )
        everything = np.concatenate([np.zeros((0, 3)), *(rows[i] for i in kept)])
        np.testing.assert_array_equal(file["fields/track/values"][()], everything)


def test_the_manifest_tells_of_items_and_lengths(tmp_path):
    study = make_study(tmp_path, num=4, fields=(TRACK,))
    study.collect(0, 4, outputs={"track": as_objects(tracks([2, 0, 5, 1]))})
    data = read_manifest(study.finish())
    (field,) = data.fields
    assert (field.ragged, field.shape, field.kind, field.path) == (True, (3,), "ragged", "fields/track")
    assert (field.lengths.min, field.lengths.max, field.lengths.count) == ((0.0,), (5.0,), (4,))
    assert field.statistics.count == (8, 8, 8)  # one entry per value of an item
    columns = {column.path: column for column in data.columns}
    assert columns["fields/track/values"].ragged
    assert columns["fields/track/offsets"].dtype == "<i8"
    with h5py.File(study.directory / "shard_00000.h5") as file:
        assert file["fields/track"].attrs["kind"] == "ragged"
        assert file["fields/track/offsets"][()].tolist() == [0, 2, 2, 7, 8]
        assert file["fields/track/values"].id.get_offset() is not None


def test_a_shard_without_any_item_is_a_shard(tmp_path):
    study = make_study(tmp_path, num=3, fields=(TRACK,), compression="gzip")
    study.collect(0, 3, outputs={"track": as_objects(tracks([0, 0, 0]))})
    data = read_manifest(study.finish())
    assert data.num_rows == 3
    assert data.fields[0].lengths.max == (0.0,)


class TestFunctionResults:
    @pytest.mark.parametrize(
        "value",
        [
            [[1, 2], [], [3]],
            [np.array([1, 2]), np.array([]), np.array([3])],
            as_objects([[1, 2], [], [3]]),
            (np.array([1, 2, 3]), np.array([0, 2, 2, 3])),
            ([1, 2, 3], [0, 2, 2, 3]),
        ],
    )
    def test_lists_objects_and_pairs_mean_the_same(self, value):
        assert [np.asarray(row).tolist() for row in item_rows(value, 3)] == [[1, 2], [], [3]]

    def test_a_dense_array_has_as_many_items_for_each_sample(self):
        assert [row.shape for row in item_rows(np.zeros((2, 5, 3)), 2)] == [(5, 3), (5, 3)]

    def test_two_arrays_that_are_no_pair_are_two_samples(self):
        rows = item_rows((np.array([1.0, 2.0]), np.array([3.0])), 2)
        assert [row.tolist() for row in rows] == [[1.0, 2.0], [3.0]]

    @pytest.mark.parametrize("value", [5, "text", np.float64(3), [[1]], (np.zeros(3), np.array([0, 1, 2]))])
    def test_anything_else_is_refused(self, value):
        with pytest.raises(ValueError, match=r"expected"):
            item_rows(value, 3)

    @pytest.mark.parametrize(
        ("row", "cause"),
        [
            (np.zeros((2, 2)), "expected shape (*, 3), found (2, 2)"),
            (np.zeros(3), "expected shape (*, 3), found (3,)"),
            (np.array(1.0), "expected shape (*, 3), found a scalar"),
            (np.full((1, 3), np.nan), "expected finite values, found nan at [0, 0] (3 of 3 values)"),
            (np.full((1, 3), 1e300), "expected float32 values, found 1e+300, which is out of range"),
            (np.zeros((1, 3), complex), "expected dtype float32, found complex128"),
            ([["a", "b", "c"]], "expected dtype float32, found text 'a'"),
        ],
    )
    def test_a_bad_row_fails_its_sample_only(self, tmp_path, row, cause):
        study = make_study(tmp_path, num=3, fields=(TRACK,))
        rows = np.empty(3, dtype=object)
        rows[0], rows[1], rows[2] = np.ones((2, 3)), row, np.ones((1, 3))
        assert study.collect(0, 3, outputs={"track": rows}) == {1: f"field 'track': {cause}"}


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def hdf5(**arrays):
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return out.getvalue()


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "content", "key"),
        [
            ("a.json", json.dumps({"t": [[1, 2, 3], [4, 5, 6]]}).encode(), "t"),
            ("a.npy", npy(np.array([[1, 2, 3], [4, 5, 6]])), None),
            ("a.npz", npz(t=np.array([[1, 2, 3], [4, 5, 6]], np.float32)), "t"),
            ("a.h5", hdf5(t=np.array([[1, 2, 3], [4, 5, 6]], np.float64)), "t"),
            ("a.csv", b"x,y,z\n1,2,3\n4,5,6\n", None),
        ],
    )
    def test_every_kind_of_file_holds_items(self, tmp_path, name, content, key):
        field = PlannedField(
            name="t", kind="ragged", dtype="float32", shape=(3,), ragged=True, file=name, key=key
        )
        study = make_cmd_study(tmp_path, {0: {name: content}}, [field])
        assert study.collect(0, 1) == {}
        study.write_shards()
        np.testing.assert_array_equal(stored(study, "fields/t", field)[0], [[1, 2, 3], [4, 5, 6]])

    def test_a_column_of_a_table_is_as_long_as_the_table(self, tmp_path):
        field = PlannedField(name="t", kind="ragged", ragged=True, file="t.csv", key="b")
        files = {0: {"t.csv": b"a,b\n1,2\n3,4\n"}, 1: {"t.csv": b"a,b\n5,6\n"}}
        study = make_cmd_study(tmp_path, files, [field])
        study.collect(0, 2)
        study.write_shards()
        assert {k: v.tolist() for k, v in stored(study, "fields/t", field).items()} == {0: [2, 4], 1: [6]}

    def test_every_match_of_a_regular_expression_is_an_item(self, tmp_path):
        field = PlannedField(name="t", kind="ragged", ragged=True, file="log", regex=r"E=(\S+)")
        study = make_cmd_study(tmp_path, {0: {"log": b"E=1\nE=2.5\n"}, 1: {"log": b"none"}}, [field])
        assert study.collect(0, 2) == {}
        study.write_shards()
        assert {k: v.tolist() for k, v in stored(study, "fields/t", field).items()} == {0: [1, 2.5], 1: []}

    def test_an_empty_list_has_no_items_whatever_their_shape(self, tmp_path):
        field = PlannedField(name="t", kind="ragged", shape=(3,), ragged=True, file="a.json", key="t")
        study = make_cmd_study(
            tmp_path, {0: {"a.json": {"t": []}}, 1: {"a.json": {"t": [[1, 2, 3]]}}}, [field]
        )
        assert study.collect(0, 2) == {}

    def test_files_larger_than_the_memory_for_them_become_several_bundles(self, tmp_path, monkeypatch):
        monkeypatch.setattr("merlin.shards.writing.collect.SLICE_BYTES", 1000)
        ragged = PlannedField(name="t", kind="ragged", ragged=True, file="t.npy")
        dense = PlannedField(name="d", kind="series", shape=(20,), file="d.npy")
        files = {
            t: {"t.npy": npy(np.full(10 * t, float(t))), "d.npy": npy(np.full(20, t))} for t in range(12)
        }
        study = make_cmd_study(tmp_path, files, [ragged, dense])
        study.collect(0, 12)
        # at most 6 tasks by their dense rows, and fewer where the items are many
        pieces = sorted((f.lo, f.hi) for f in list_bundles(study.directory / "bundles/0"))
        assert pieces == [(0, 6), (6, 8), (8, 10), (10, 12)]
        study.write_shards()
        found = stored(study, "fields/t", ragged)
        assert {k: (len(v), set(v.tolist())) for k, v in found.items()} == {
            t: (10 * t, {float(t)} if t else set()) for t in range(12)
        }


def graph_outputs(nodes, edges):
    """Good graphs with these numbers of nodes and edges."""
    rings = [[[k % n, (k + 1) % n] for k in range(m)] for n, m in zip(nodes, edges, strict=True)]
    out = {
        "mol.nodes": [np.ones((n, 4), np.float32) for n in nodes],
        "mol.positions": [np.zeros((n, 3), np.float32) for n in nodes],
        "mol.edges": [np.array(ring, dtype=int).reshape(-1, 2) for ring in rings],
        "mol.edge_features": [np.full((m, 1), 2.0, np.float32) for m in edges],
        "mol.node_targets": [np.arange(n, dtype=np.float32) for n in nodes],
    }  # fmt: skip
    return {name: as_objects(rows) for name, rows in out.items()} | {
        "mol.targets": np.arange(len(nodes), dtype=float)
    }


class TestGraphs:
    def test_members_are_stored_side_by_side(self, tmp_path):
        study = make_study(tmp_path, num=3, fields=GRAPH)
        assert study.collect(0, 3, outputs=graph_outputs([2, 3, 1], [4, 0, 1])) == {}
        data = read_manifest(study.finish())
        assert [field.path for field in data.fields][:2] == ["fields/mol/nodes", "fields/mol/positions"]
        assert {field.graph for field in data.fields} == {"mol"}
        with h5py.File(study.directory / "shard_00000.h5") as file:
            graph = file["fields/mol"]
            assert graph.attrs["kind"] == "graph"
            assert sorted(graph) == sorted(field.role for field in GRAPH)
            assert graph["nodes/offsets"][()].tolist() == [0, 2, 5, 6]
            assert graph["edges/offsets"][()].tolist() == [0, 4, 4, 5]
            assert graph["targets"][()].tolist() == [0, 1, 2]
            assert graph["edges"].attrs["role"] == "edges"

    @pytest.mark.parametrize(
        ("name", "row", "cause"),
        [
            ("mol.positions", np.zeros((5, 3)), "graph 'mol': 2 nodes, and 5 positions"),
            ("mol.node_targets", np.zeros(1), "graph 'mol': 2 nodes, and 1 node_targets"),
            ("mol.edge_features", np.zeros((3, 1)), "graph 'mol': 4 edges, and 3 edge_features"),
            (
                "mol.edges",
                np.array([[0, 1], [1, 2], [0, 0], [1, 1]]),
                "field 'mol.edges': an edge leads to node 2, and there are 2 (from 0 on)",
            ),
            (
                "mol.edges",
                np.array([[0, 1], [-1, 0], [0, 0], [1, 1]]),
                "field 'mol.edges': an edge leads to node -1",
            ),
            (
                "mol.edges",
                np.zeros((2, 4), int),
                "field 'mol.edges': expected shape (*, 2), found (2, 4); transpose",
            ),
            ("mol.edges", np.zeros((4, 2)), "field 'mol.edges': expected dtype int64, found float64"),
        ],
    )
    def test_members_that_do_not_fit_fail_their_sample_only(self, tmp_path, name, row, cause):
        study = make_study(tmp_path, num=3, fields=GRAPH)
        outputs = graph_outputs([2, 2, 2], [4, 4, 4])
        outputs[name][1] = row
        causes = study.collect(0, 3, outputs=outputs)
        assert list(causes) == [1]
        assert causes[1].startswith(cause)

    def test_a_bundle_that_is_lost_is_collected_again_from_files(self, tmp_path):
        field = member("nodes", (4,), file="g.npz", key="nodes", output=None)
        edges = member("edges", (2,), file="g.npz", key="edges", output=None)
        good = npz(nodes=np.ones((2, 4), np.float32), edges=np.array([[0, 1]]))
        bad = npz(nodes=np.ones((2, 4), np.float32), edges=np.array([[0, 9]]))
        study = make_cmd_study(tmp_path, {0: {"g.npz": good}, 1: {"g.npz": bad}}, [field, edges])
        with pytest.raises(ShardError, match="leads to node 9"):
            study.write_shard(0)
        study.failures = {(0, 1): "bad"}
        info = study.write_shard(0)
        assert info.num_rows == 1
        with h5py.File(study.directory / info.file) as file:
            assert file["provenance/attempt"][()].tolist() == [0]


def test_columns_in_memory_select_and_cut():
    column = Ragged.of([np.arange(2.0), None, np.arange(3.0)], np.dtype(float), ())
    assert column.lengths.tolist() == [2, 0, 3]
    chosen = column.select(np.array([False, True, True]))
    assert (chosen.offsets.tolist(), chosen.values.tolist()) == ([0, 0, 3], [0, 1, 2])
    part = column[1:3]
    assert part.items.tolist() == [0, 1, 2]
    assert part.any_item(part.items == 2).tolist() == [False, True]
    assert part.select(np.array([True, True])).offsets.tolist() == [0, 0, 3]


def test_the_sidecar_knows_what_is_ragged(tmp_path):
    study = make_study(tmp_path, num=2, fields=(TRACK,))
    study.collect(0, 2, outputs={"track": as_objects(tracks([1, 2]))})
    study.write_shards()
    info = read_info(study.directory / "shard_00000.json")
    ragged = {d.name: d for d in info.datasets if d.ragged}
    assert set(ragged) == {"fields/track/values", "fields/track/offsets"}
    assert ragged["fields/track/values"].shape == (3, 3)
    assert ragged["fields/track/offsets"].statistics.mean == (1.5,)
