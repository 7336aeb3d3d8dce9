"""Files of other people that lie: about where their values are, and how many there are."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from effort import repeats
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from merlin.base.document.findings import Findings
from merlin.base.kinds import OUTPUT_SUFFIXES
from merlin.errors import MerlinError, ShardError
from merlin.plan.plan import PlannedField
from merlin.shards.importing.infer import infer_schema
from merlin.shards.importing.run import import_data
from merlin.shards.importing.sources import open_source
from merlin.shards.writing.check import BadOutput
from merlin.shards.writing.extract import _OPENERS, TaskFiles
from merlin.spec.import_schema import parse_import_schema

SECRET = b"root:x:0:0"
HUGE = 10**12


def import_(source: Path, text: str, out: Path) -> Any:
    return import_data([source], parse_import_schema(text, Findings("schema.yaml")), out)


def refused(path: Path, fields: str = "fields: {y: }") -> str:
    """The message of an import that fails and leaves nothing."""
    out = path.parent / "out"
    with pytest.raises(ShardError) as caught:
        import_(path, fields, out)
    assert not out.exists()
    return str(caught.value)


# ---------------------------------------------------------------------------- HDF5


def external(file: h5py.File, folder: Path) -> None:
    file.create_dataset("y", (len(SECRET),), "u1", external=[(str(folder / "secret"), 0, len(SECRET))])


def virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "y", (4,))
    file.create_virtual_dataset("y", layout)


def external_behind_virtual(file: h5py.File, folder: Path) -> None:
    external(file, folder)
    file.move("y", "hidden")
    layout = h5py.VirtualLayout((len(SECRET),), "u1")
    layout[:] = h5py.VirtualSource(".", "hidden", (len(SECRET),))
    file.create_virtual_dataset("y", layout)


def virtual_by_pattern(file: h5py.File, folder: Path) -> None:
    """Of this file, but which data sets it names is known only when it is read."""
    space, block = h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,)), h5py.h5s.create_simple((4,))
    space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), stride=(4,), block=(4,))
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_virtual(space, b".", b"part%b", block)
    h5py.h5d.create(
        file.id, b"y", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,)), made
    )


def virtual_of_itself(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(".", "y", (4,))
    file.create_virtual_dataset("y", layout)


def external_link(file: h5py.File, folder: Path) -> None:
    file["y"] = h5py.ExternalLink(str(folder / "other.h5"), "/y")


def link_to_external_link(file: h5py.File, folder: Path) -> None:
    file["away"] = h5py.ExternalLink(str(folder / "other.h5"), "/")
    file["y"] = h5py.SoftLink("/away/y")


def soft_links_in_a_circle(file: h5py.File, folder: Path) -> None:
    file["y"], file["z"] = h5py.SoftLink("/z"), h5py.SoftLink("/y")


def nothing_in_many_rows(file: h5py.File, folder: Path) -> None:
    file.create_dataset("y", (HUGE,), "f8", chunks=(1000,))


def nothing_in_many_empty_rows(file: h5py.File, folder: Path) -> None:
    file.create_dataset("y", (HUGE, 0), "f8", chunks=(1000, 1), maxshape=(None, None))


def nothing_in_wide_rows(file: h5py.File, folder: Path) -> None:
    file.create_dataset("y", (3, HUGE), "f8", chunks=(1, 1000))


def many_packed_zeros(file: h5py.File, folder: Path) -> None:
    made = file.create_dataset("y", (HUGE,), "f8", chunks=(1000,), compression="gzip")
    made[:10_000] = 0


def offsets_that_go_back(file: h5py.File, folder: Path) -> None:
    file["y/values"], file["y/offsets"] = np.arange(4.0), [0, 3, 1, 4]


def offsets_beyond_the_end(file: h5py.File, folder: Path) -> None:
    file["y/values"], file["y/offsets"] = np.arange(4.0), [0, 3, HUGE]


def offsets_that_are_no_list(file: h5py.File, folder: Path) -> None:
    file["y/values"], file["y/offsets"] = np.arange(4.0), 3


def text_that_is_no_unicode(file: h5py.File, folder: Path) -> None:
    made = file.create_dataset("y", (1,), h5py.string_dtype())
    made[0] = b"\xff\xfe\xfa"


HDF5: dict[Callable[[h5py.File, Path], None], str] = {
    external: "external storage",
    virtual: "virtual data set of other files",
    external_behind_virtual: "external storage",
    virtual_by_pattern: "virtual data set of other files",
    virtual_of_itself: "virtual data set of itself",
    external_link: "link to another file",
    link_to_external_link: "link to another file",
    soft_links_in_a_circle: "in a circle",
    nothing_in_many_rows: "made to fill disks",
    nothing_in_many_empty_rows: "made to fill disks",
    nothing_in_wide_rows: "made to fill disks",
    many_packed_zeros: "made to fill disks",
    offsets_that_go_back: "do not ascend",
    offsets_beyond_the_end: "do not ascend",
    offsets_that_are_no_list: "no list",
    text_that_is_no_unicode: "cannot be read",
}
SINGLE = [make for make in HDF5 if "offsets" not in make.__name__ and make is not text_that_is_no_unicode]


def make_file(folder: Path, make: Callable[[h5py.File, Path], None], name: str = "a.h5") -> Path:
    (folder / "secret").write_bytes(SECRET)
    with h5py.File(folder / "other.h5", "w") as file:
        file["y"] = np.arange(4.0)
    with h5py.File(folder / name, "w") as file:
        make(file, folder)
        file["fine"] = np.arange(3.0)
    return folder / name


@pytest.mark.parametrize("make", HDF5, ids=lambda make: make.__name__)
def test_an_hdf5_file_is_all_that_is_imported(
    tmp_path: Path, make: Callable[[h5py.File, Path], None]
) -> None:
    path = make_file(tmp_path, make)
    assert HDF5[make] in refused(path) and str(path) in refused(path)
    text = infer_schema([path])
    assert "fine" in text
    assert import_(path, "fields: {fine: }", tmp_path / "rest").counts.ok == 3


@pytest.mark.parametrize("make", SINGLE, ids=lambda make: make.__name__)
def test_groups_are_read_in_the_same_way(tmp_path: Path, make: Callable[[h5py.File, Path], None]) -> None:
    def group(file: h5py.File, folder: Path) -> None:
        make(file, folder)
        sample = file.create_group("sample")
        if "y" in dict.fromkeys(file):
            sample["y"] = h5py.SoftLink("/y")

    assert HDF5[make] in refused(make_file(tmp_path, group), "samples: groups\nfields: {y: }")


@pytest.mark.parametrize("make", SINGLE, ids=lambda make: make.__name__)
def test_the_outputs_of_tasks_are_read_in_the_same_way(
    tmp_path: Path, make: Callable[[h5py.File, Path], None]
) -> None:
    make_file(tmp_path, make, "out.h5")
    files = TaskFiles(
        (PlannedField(name="y", kind="series", dtype="float64", shape=(4,), file="out.h5", key="y"),)
    )
    with pytest.raises(BadOutput, match=HDF5[make]):
        files.read(str(tmp_path))


def test_links_and_virtual_data_sets_inside_a_file_are_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["deep/x"] = np.arange(4.0)
        file["deep/self"] = h5py.SoftLink("/deep")
        file["y"] = h5py.SoftLink("deep/self/self/x")
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(".", "y", (4,))
        file.create_virtual_dataset("z", layout)
    assert import_(tmp_path / "a.h5", "fields: {y: , z: }", tmp_path / "out").counts.ok == 4


# --------------------------------------------------------------------------- arrays


def npy(shape: Any, dtype: str = "<f8", values: bytes = b"", *, version: int = 1) -> bytes:
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack("<H" if version == 1 else "<I", len(header))
        + header
        + values
    )


LIES = {
    "more rows": npy((HUGE,), values=bytes(80)),
    "a few more rows": npy((11,), values=bytes(80)),
    "wide rows": npy((1, HUGE), values=bytes(80)),
    "empty rows": npy((HUGE, 0)),
    "negative": npy((-1,), values=bytes(80)),
    "two negatives": npy((-1, -10), values=bytes(80)),
    "objects": npy((1,), "|O", bytes(8)),
    "nothing each": npy((HUGE,), "<U0"),
    "no header": b"\x93NUMPY\x01\x00",
    "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "version 9": b"\x93NUMPY\x09\x00\x10\x00",
    "no array": b"PK",
    "nested": b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000,
    "nothing": b"",
}


def archive(path: Path, content: bytes, *, packed: bool = True, claims: int | None = None) -> Path:
    """An .npz with a member y; `claims`: the size that its directory gives it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as file:
        file.writestr("y.npy", content)
        file.writestr("fine.npy", npy((3,), values=bytes(24)))
    if claims is not None:
        raw = path.read_bytes()
        old, new = struct.pack("<I", len(content)), struct.pack("<I", claims)
        at = raw.index(b"PK\x01\x02") + 24  # of the first entry of the directory, its unpacked size
        assert raw[at : at + 4] == old
        path.write_bytes(raw[:at] + new + raw[at + 4 :])
    return path


@pytest.mark.parametrize("content", LIES.values(), ids=LIES)
def test_arrays_that_promise_more_than_there_is_leave_nothing(tmp_path: Path, content: bytes) -> None:
    assert "a.npz: 'y'" in refused(archive(tmp_path / "a.npz", content))
    (tmp_path / "y.npy").write_bytes(content)
    assert "y.npy" in refused(tmp_path / "y.npy")
    for name in ("a.npz", "y.npy"):
        field = PlannedField(name="y", kind="series", dtype="float64", shape=(10,), file=name, key="y")
        with pytest.raises(BadOutput):
            TaskFiles((field,)).read(str(tmp_path))
    assert import_(tmp_path / "a.npz", "fields: {fine: }", tmp_path / "rest").counts.ok == 3


@pytest.mark.parametrize("packed", [True, False])
def test_an_archive_whose_directory_lies_too_leaves_nothing(tmp_path: Path, packed: bool) -> None:
    path = archive(tmp_path / "a.npz", npy((200_000_000,), values=bytes(80)), packed=packed, claims=1 << 31)
    assert "unpack to 2,147,483,648" in refused(path)


def test_an_archive_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    """Its directory promises what a better compression could keep, so shards are written until it ends."""
    values = np.random.default_rng(0).random(20_000)
    path = archive(tmp_path / "a.npz", npy((40_000,), values=values.tobytes()), claims=320_200)
    said = refused(path, "fields: {y: }\nsamples_per_shard: 5000")
    assert "ends early" in said or "cannot be read" in said


def test_an_import_of_bad_values_leaves_a_directory_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    np.save(tmp_path / "y.npy", np.array([0.0] * 2500 + [np.nan]))
    with pytest.raises(ShardError, match="found nan"):
        import_(tmp_path / "y.npy", "fields: {y: }", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@settings(max_examples=repeats(100, 3000), deadline=None)
@given(
    shape=st.lists(st.integers(-(2**70), 2**70) | st.integers(0, 4) | st.just(True) | st.none(), max_size=4),
    dtype=st.sampled_from(["<f8", "|b1", "<U3", "<U1000000000", "|V0", "|O", "<M8[s]", "<c16", "nonsense"]),
    num=st.integers(0, 200),
    version=st.sampled_from([1, 2, 3]),
    cut=st.integers(0, 60),
)
@example(shape=[0, 3137, 367_523_590_885_192], dtype="<f8", num=0, version=1, cut=0)
def test_whatever_a_header_says_the_error_is_ours(
    tmp_path_factory: pytest.TempPathFactory, shape: list[Any], dtype: str, num: int, version: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("lies")
    content = npy(tuple(shape), dtype, bytes(num), version=version)
    path = archive(folder / "a.npz", content[: len(content) - cut])
    (folder / "y.npy").write_bytes(content[: len(content) - cut])
    for file in (path, folder / "y.npy"):
        try:
            source = open_source(file, "rows", None)
            facts = source.facts("y")
            source.read("y", 0, facts.num, facts)
        except MerlinError:
            pass
        try:
            TaskFiles((PlannedField(name="y", file=file.name, key="y"),)).read(str(folder))
        except BadOutput:
            pass


# ------------------------------------------------------------------ Parquet and text


def test_parquet_files_that_say_odd_things(tmp_path: Path) -> None:
    table = pa.table({"y": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float64(), 2))})
    for number, shape in enumerate(("[1000000000000]", '["a"]', "nonsense", "[-2, -1]", "[3]", "{}")):
        field = table.schema.field("y").with_metadata({"shape": shape})
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(table.cast(pa.schema([field])), path)
        try:
            import_(path, "fields: {y: }", tmp_path / f"out{number}")
        except MerlinError as error:
            assert "y" in str(error)
    for told in (
        "[]",
        "{",
        '{"columns": [3]}',
        '{"columns": [{"name": "y", "channels": 3, "units": [], "axes": {}}]}',
    ):
        schema = table.schema.with_metadata({"merlin": told})
        parquet.write_table(table.cast(schema), tmp_path / "told.parquet")
        assert (
            import_(tmp_path / "told.parquet", "fields: {y: }", tmp_path / f"told{len(told)}").counts.ok == 3
        )
        assert "y" in str(infer_schema([tmp_path / "told.parquet"]))


@pytest.mark.parametrize("store_schema", [True, False], ids=["as a dictionary", "as text"])
def test_a_text_that_a_small_parquet_file_repeats_does_not_fill_the_memory(
    tmp_path: Path, store_schema: bool
) -> None:
    for num, length in ((300_000, 100_000), (1000, 5)):
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * num, pa.int32()), pa.array(["x" * length]))
        path = tmp_path / f"{num}.parquet"
        parquet.write_table(pa.table({"t": texts}), path, store_schema=store_schema)
        source = open_source(path, "rows", None)
        facts = source.facts("t")
        if length == 5:
            assert list(source.read("t", 1, 3, facts)) == ["xxxxx"] * 2
            continue
        with pytest.raises(ShardError, match=r"'t': .* made to fill disks"):
            source.read("t", 0, 3, facts)


@settings(max_examples=repeats(30, 600), deadline=None)
@given(places=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_parquet_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]]
) -> None:
    made = io.BytesIO()
    parquet.write_table(pa.table({"y": np.arange(50.0), "t": ["a"] * 50}), made)
    raw = bytearray(made.getvalue())
    for place, value in places:
        raw[place % len(raw)] = value
    path = tmp_path_factory.mktemp("damaged") / "a.parquet"
    path.write_bytes(raw)
    try:
        source = open_source(path, "rows", None)
        for key in source.names():
            facts = source.facts(key)
            source.read(key, 0, facts.num, facts)
            source.about(key)
    except MerlinError:
        pass


def test_numbers_of_many_digits_are_bad_values(tmp_path: Path) -> None:
    for number, digits in enumerate((30, 400, 5000)):
        (tmp_path / "a.csv").write_text(f"y\n1\n{'9' * digits}\n")
        with pytest.raises(ShardError, match=r"a\.csv:3:1: row 1, 'y'"):
            import_(tmp_path / "a.csv", "fields: {y: {dtype: int64}}", tmp_path / f"out{number}")


def test_a_cell_that_is_too_long_is_a_bad_output(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y\n" + "9" * 200_000 + "\n")
    with pytest.raises(BadOutput, match="cannot be read: field larger than field limit"):
        TaskFiles((PlannedField(name="y", file="a.csv", key="y"),)).read(str(tmp_path))


def test_ids_that_are_too_large_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.arange(2.0), i=np.array([0, 2**63 - 1]))
    with pytest.raises(MerlinError, match="most shards would be empty"):
        import_(tmp_path / "a.npz", "fields: {y: }\nsample_id: i", tmp_path / "out")


def test_what_an_export_wrote_beside_may_be_anything(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.zeros((3, 2)))
    for told in ({"columns": 3}, {"columns": [{"name": "y", "units": {}, "axes": 5, "path": [], "kind": 7}]}):
        (tmp_path / "export.json").write_text(json.dumps({"files": [{"file": "a.npz"}], **told}))
        assert "y" in str(infer_schema([tmp_path / "a.npz"]))


def test_a_spec_is_checked_for_the_types_of_files_that_can_be_read() -> None:
    assert {*OUTPUT_SUFFIXES, "regex"} == set(_OPENERS)
