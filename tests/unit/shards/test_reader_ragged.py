"""Fields of variable length, and graphs, over many shards."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_data import PRESENT, make_reading_study, ragged_of
from test_reader import keys

import merlin
from merlin.errors import ShardError
from merlin.shards.format.segments import Ragged
from merlin.shards.reading.ragged import RaggedArray, join_graphs
from merlin.shards.reading.store import Store

SIZE = len(PRESENT)
TRUTH = ragged_of(np.array(PRESENT))


@pytest.fixture(scope="module", params=["none", "zstd"])
def ens(request, tmp_path_factory):
    study = make_reading_study(tmp_path_factory.mktemp("ragged") / "w", compression=request.param)
    with merlin.open_shards(study.finish()) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return make_reading_study(tmp_path_factory.mktemp("plain") / "w").finish()


def assert_rows(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


@settings(max_examples=repeats(25, 600), deadline=None)
@given(key=keys(SIZE))
def test_every_index_gives_the_items_that_numpy_gives(ens, key):
    rows = np.arange(SIZE)[key]
    for name in ("track", "hits"):
        found = ens[name][key]
        if isinstance(key, int):
            np.testing.assert_array_equal(found, TRUTH[name][rows])
        else:
            assert isinstance(found, Ragged) and found.offsets[0] == 0
            assert_rows(found.to_list(), [TRUTH[name][row] for row in rows])


@settings(max_examples=20, deadline=None)
@given(positions=st.lists(st.integers(0, SIZE - 1), max_size=20), data=st.data())
def test_so_does_a_selection(ens, positions, data):
    selection = ens.take(positions)
    key = data.draw(keys(len(positions))) if positions else slice(None)
    found, rows = selection["track"][key], np.array(positions, np.int64)[key]
    if isinstance(key, int):
        np.testing.assert_array_equal(found, TRUTH["track"][rows])
    else:
        assert_rows(found.to_list(), [TRUTH["track"][row] for row in rows])


def test_an_array_without_axes_is_an_integer(ens):
    np.testing.assert_array_equal(ens["track"][np.array(4)], TRUTH["track"][4])
    assert ens["mesh"][np.array(4)].keys() == {"nodes", "edges", "targets"}


@pytest.mark.parametrize("name", ["track", "mesh"])
@pytest.mark.parametrize("key", [(1, 2), True, None, [[1, 2]]])
def test_only_samples_are_chosen(ens, name, key):
    with pytest.raises(IndexError, match=r"choose samples|names no sample|one-dimensional"):
        ens[name][key]


def test_lengths_and_shapes_are_known(ens):
    track = ens["track"]
    assert track.shape == (SIZE, None, 3)
    assert track.dtype == np.float32
    assert track.lengths.tolist() == [len(rows) for rows in TRUTH["track"]]
    assert "RaggedArray('track'" in repr(track)
    assert ens["mesh.nodes"].name == "mesh.nodes"
    assert_rows(list(track), TRUTH["track"])


def test_consecutive_rows_of_a_shard_share_its_memory(plain):
    ens = merlin.open_shards(plain)
    found = ens["track"][2:9]
    assert not found.values.flags.owndata and not found.values.flags.writeable
    assert np.shares_memory(found.values, ens["track"][4])


def test_long_runs_are_copied_as_short_ones_are(plain, monkeypatch):
    where = np.random.default_rng(0).integers(0, SIZE, 99)
    expected = [TRUTH["track"][row] for row in where]
    for limit in (0, 1 << 30):
        monkeypatch.setattr("merlin.shards.reading.store._RUN_BYTES", limit)
        assert_rows(merlin.open_shards(plain)["track"][where].to_list(), expected)


def test_offsets_that_cannot_be_are_an_error_that_names_the_shard(plain):
    path = plain / "shard_00001.h5"
    whole = path.read_bytes()
    with h5py.File(path, "r") as file:
        offset = file["fields/track/offsets"].id.get_offset()
    for wrong in (-5, 1 << 40, 0):
        content = bytearray(whole)
        content[offset + 8 * 3 : offset + 8 * 4] = np.int64(wrong).tobytes()
        path.write_bytes(content)
        with pytest.raises(ShardError, match=r"shard_00001\.h5.*offsets is damaged.*verify"):
            merlin.open_shards(plain)["track"][:]
    path.write_bytes(whole)


# graphs


def test_a_graph_is_a_dict_of_its_members(ens):
    graph = ens["mesh"][7]
    for role in ("nodes", "edges", "targets"):
        np.testing.assert_array_equal(graph[role], TRUTH[f"mesh.{role}"][7])
    assert "mesh" in ens and len(ens["mesh"]) == SIZE
    assert [len(g["nodes"]) for g in ens["mesh"]] == [len(nodes) for nodes in TRUTH["mesh.nodes"]]


@settings(max_examples=repeats(20, 300), deadline=None)
@given(rows=st.lists(st.integers(0, SIZE - 1), max_size=12))
def test_a_batch_of_graphs_counts_nodes_through(ens, rows):
    batch = ens.batch(rows, ["mesh"])["mesh"]
    assert len(batch["ptr"]) == len(batch["edge_ptr"]) == len(rows) + 1
    assert batch["targets"].shape == (len(rows), 2)
    for i, row in enumerate(rows):
        lo, hi = batch["ptr"][i : i + 2]
        np.testing.assert_array_equal(batch["nodes"][lo:hi], TRUTH["mesh.nodes"][row])
        a, b = batch["edge_ptr"][i : i + 2]
        np.testing.assert_array_equal(batch["edges"][a:b] - lo, TRUTH["mesh.edges"][row])
        np.testing.assert_array_equal(batch["targets"][i], TRUTH["mesh.targets"][row])


def test_graphs_without_edges_are_joined_too():
    nodes = Ragged(np.arange(5.0).reshape(5, 1), np.array([0, 2, 5]))
    joined = join_graphs({"nodes": nodes})
    assert joined["ptr"].tolist() == [0, 2, 5]
    assert "edges" not in joined


# Ragged in memory


RAGGED = Ragged(np.arange(10), np.array([1, 3, 3, 8]))


def test_a_ragged_is_a_sequence():
    assert [row.tolist() for row in RAGGED] == [[1, 2], [], [3, 4, 5, 6, 7]]
    assert RAGGED[-1].tolist() == [3, 4, 5, 6, 7]
    assert [row.tolist() for row in RAGGED[[2, 0]]] == [[3, 4, 5, 6, 7], [1, 2]]
    assert [row.tolist() for row in RAGGED[1:]] == [[], [3, 4, 5, 6, 7]]
    assert [row.tolist() for row in RAGGED[np.array([True, False, True])]] == [[1, 2], [3, 4, 5, 6, 7]]
    assert [row.tolist() for row in RAGGED[::-1]] == [[3, 4, 5, 6, 7], [], [1, 2]]
    with pytest.raises(IndexError):
        RAGGED[3]


def test_a_ragged_can_be_padded_and_cut():
    assert RAGGED.padded(-1).tolist() == [[1, 2, -1, -1, -1], [-1] * 5, [3, 4, 5, 6, 7]]
    assert RAGGED.padded(0, length=3).tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert Ragged(np.zeros((0, 2)), np.zeros(1, np.int64)).padded().shape == (0, 0, 2)


@settings(max_examples=repeats(25, 500), deadline=None)
@given(lengths=st.lists(st.integers(0, 5), max_size=8), width=st.integers(0, 6))
def test_padding_keeps_every_item_that_fits(lengths, width):
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
    ragged = Ragged(np.arange(offsets[-1]), offsets)
    padded = ragged.padded(-1, length=width)
    for row, items in zip(padded, ragged, strict=True):
        assert row.tolist() == (items.tolist() + [-1] * width)[:width]


def test_a_ragged_array_without_maps_reads_the_same(plain, monkeypatch):
    monkeypatch.setattr(Store, "_make_map", lambda self, path: None)
    ens = merlin.open_shards(plain)
    assert isinstance(ens["track"], RaggedArray)
    assert_rows(ens["track"][::-1].to_list(), TRUTH["track"][::-1])
    assert_rows(ens["hits"][3:30].to_list(), TRUTH["hits"][3:30])
