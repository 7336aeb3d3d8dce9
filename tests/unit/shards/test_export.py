"""Every format is read back by its own library, and compared value by value with what went into the data set."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import SUPPORT
from export_data import DENSE, RAGGED, Made, assert_same, make_kinds
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import ShardError, UsageError
from merlin.shards.export.base import ExportOptions
from merlin.shards.export.directory import ExportDirectory
from merlin.shards.export.formats import FORMATS, exporter_of, make_exporter
from merlin.shards.export.mds import MdsExporter
from merlin.shards.export.run import export
from merlin.shards.format.segments import stretches_of

ROOT = Path(__file__).resolve().parents[3]
LBANN_FIELDS = ("energy", "image", "view", "note")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> Made:
    return make_kinds(tmp_path_factory.mktemp("kinds"))


def export_to(made: Made, out: Path, to: str, overwrite: bool = False, **more) -> dict:
    more.setdefault("samples_per_file", 25)
    if to == "lbann":
        more.setdefault("fields", LBANN_FIELDS)
    return export(made.path, out, ExportOptions(format=to, **more), overwrite=overwrite)


def flat_name(column: str) -> str:
    """The name of a column in flat formats; the input `energy` has the name of a field."""
    return column if column == "inputs/energy" else column.removeprefix("inputs/").removeprefix("parameters/")


def test_npz(kinds, tmp_path):
    export_to(kinds, tmp_path, "npz", compression="deflate")
    at = 0
    for path in sorted(tmp_path.glob("*.npz")):
        with np.load(path) as found:
            num = len(found["row"])
            np.testing.assert_array_equal(found["row"], kinds.rows[at : at + num])
            for name, column in kinds.values.items():
                for i, expected in enumerate(column[at : at + num]):
                    if name in RAGGED:
                        a, b = found[f"{name}.offsets"][i : i + 2]
                        assert_same(found[f"{name}.values"][a:b], expected)
                    elif isinstance(expected, str):
                        assert found[flat_name(name)][i] == expected
                    else:
                        assert_same(found[flat_name(name)][i], expected)
        at += num
    assert at == len(kinds.rows)


@pytest.mark.parametrize("compression", ["zstd", "none", "snappy", "gzip"])
def test_parquet(kinds, tmp_path, compression):
    from pyarrow import parquet

    export_to(kinds, tmp_path, "parquet", compression=compression)
    table = parquet.read_table(tmp_path / "data")
    assert table["row"].to_pylist() == kinds.rows.tolist()
    for name, column in kinds.values.items():
        found = table[flat_name(name)].combine_chunks()
        field = table.schema.field(flat_name(name))
        for i, expected in enumerate(column):
            if isinstance(expected, str):
                assert found[i].as_py() == expected
            elif name in RAGGED:
                items = np.array(found[i].as_py(), expected.dtype).reshape(expected.shape)
                assert_same(items, expected)
                assert json.loads(field.metadata[b"shape"])[0] == "*"
            elif np.ndim(expected):
                assert_same(found[i].to_numpy(), expected)
            else:
                assert np.asarray(found[i].as_py(), np.asarray(expected).dtype) == expected
    assert table.schema.field("energy").metadata[b"units"] == b"J"
    assert str(table.schema.field("image").type).startswith("extension<arrow.fixed_shape_tensor")


@pytest.mark.parametrize("compression", ["zstd", "blosc", "none"])
def test_zarr(kinds, tmp_path, compression):
    import zarr

    export_to(kinds, tmp_path, "zarr", compression=compression)
    group = zarr.open_group(tmp_path / "data.zarr", mode="r")
    np.testing.assert_array_equal(group["row"][:], kinds.rows)
    for name, column in kinds.values.items():
        path = name if "/" in name else f"fields/{name.replace('.', '/')}"
        if name in RAGGED:
            offsets, values = group[path]["offsets"][:], group[path]["values"][:]
            for i, expected in enumerate(column):
                assert_same(values[offsets[i] : offsets[i + 1]], expected)
            continue
        found = group[path][:]
        for i, expected in enumerate(column):
            assert_same(str(found[i]) if isinstance(expected, str) else found[i], expected)
    assert group["fields/energy"].attrs["units"] == "J"
    assert group.attrs["study"]["name"] == "kinds"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_webdataset(kinds, tmp_path, compression):
    import webdataset

    export_to(kinds, tmp_path, "webdataset", compression=compression)
    index = json.loads((tmp_path / "index.json").read_text())
    urls = [str(tmp_path / shard["url"]) for shard in index["shardlist"]]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    assert [int(sample["__key__"]) for sample in samples] == kinds.rows.tolist()
    assert sum(shard["nsamples"] for shard in index["shardlist"]) == len(samples)
    for i, sample in enumerate(samples):
        numbers = sample["json"]
        assert numbers["sample_id"] == numbers["row"] == kinds.rows[i]
        for name, column in kinds.values.items():
            expected = column[i]
            role, _, label = name.rpartition("/")
            if role:
                assert numbers[role][label] == expected
            elif isinstance(expected, str):
                assert sample[f"{name}.txt"] == expected
            elif np.ndim(expected):
                assert_same(sample[f"{name}.npy"], expected)
            else:
                assert_same(np.asarray(numbers["scalars"][name], np.asarray(expected).dtype), expected)


@pytest.fixture(scope="module")
def read_by_streaming(kinds, tmp_path_factory) -> dict[str, Path]:
    """What MosaicML's library finds in an export with this compression.

    In a process of its own: the library is not a dependency (tests/install_readers.sh).
    """
    pytest.importorskip("torch")
    libraries = sorted((ROOT / ".cache").glob("mds-*/.complete"))
    if not libraries:
        assert not os.environ.get("CI"), "mosaicml-streaming is not installed: run tests/install_readers.sh"
        pytest.skip("mosaicml-streaming is not installed: run tests/install_readers.sh")
    folder = tmp_path_factory.mktemp("mds")
    found = {compression: folder / f"{compression}.npz" for compression in ("none", "zstd")}
    for compression in found:
        export_to(kinds, folder / compression, "mds", compression=compression)
    pairs = [path for compression in found for path in (folder / compression, found[compression])]
    done = subprocess.run(
        [sys.executable, SUPPORT / "mds_reader.py", *pairs],
        env={**os.environ, "PYTHONPATH": str(libraries[-1].parent)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_mds_is_read_by_mosaicml_streaming(kinds, read_by_streaming, compression):
    with np.load(read_by_streaming[compression]) as found:
        assert found["num"] == len(kinds.rows)
        for name, column in kinds.values.items():
            for i, expected in enumerate(column):
                value = found[f"{i}:{flat_name(name)}"]
                if isinstance(expected, str):
                    assert str(value) == expected
                elif np.asarray(expected).dtype == bool:
                    assert value == expected  # stored as a byte
                else:
                    assert_same(value, expected)


def test_mds_by_its_documented_layout(kinds, tmp_path):
    """The same without any library, for a laptop: heads, offsets and the bytes of fixed-size columns."""
    export_to(kinds, tmp_path, "mds", fields=("energy", "image"))
    index = json.loads((tmp_path / "index.json").read_text())
    at = 0
    for shard in index["shards"]:
        data = (tmp_path / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        num = int(np.frombuffer(data, "<u4", 1)[0])
        offsets = np.frombuffer(data, "<u4", num + 1, 4)
        head = json.loads(data[4 + 4 * (num + 1) : offsets[0]])
        assert head["column_names"] == sorted(head["column_names"]) == shard["column_names"]
        assert offsets[-1] == len(data) and num == shard["samples"]
        for i in range(num):
            body = data[offsets[i] : offsets[i + 1]]
            variable = sum(size is None for size in shard["column_sizes"])
            start = 4 * variable
            for name, size in zip(shard["column_names"], shard["column_sizes"], strict=True):
                size = size or int(np.frombuffer(body, "<u4", 1)[0])  # `material` is the only one
                if name == "image":
                    assert_same(
                        np.frombuffer(body, "<f4", 60, start).reshape(6, 5, 2), kinds.values[name][at + i]
                    )
                start += size
            assert start == len(body)
        at += num
    assert at == len(kinds.rows)


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_says_what_it_holds_and_is_not_written_twice(kinds, tmp_path, to):
    told = export_to(kinds, tmp_path, to)
    assert told["num_samples"] == len(kinds.rows) == sum(f["hi"] - f["lo"] for f in told["files"])
    assert told["request"]["content_digest"] and not (tmp_path / ".export").exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert export_to(kinds, tmp_path, to) == told
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("to", FORMATS)
def test_a_killed_export_goes_on_and_ends_in_the_same_files(kinds, tmp_path, to, monkeypatch):
    whole = export_to(kinds, tmp_path / "whole", to, samples_per_file=8)
    exporter = type(
        make_exporter(kinds.path, ExportOptions(format=to, fields=LBANN_FIELDS if to == "lbann" else None))
    )
    original, calls = exporter.write_part, []

    def stops(self, directory, number):
        calls.append(number)
        if len(calls) == 4:
            (directory / "shard.00003.mds.1.tmp").write_bytes(b"half")
            raise KeyboardInterrupt
        return original(self, directory, number)

    monkeypatch.setattr(exporter, "write_part", stops)
    with pytest.raises(KeyboardInterrupt):
        export_to(kinds, tmp_path / "cut", to, samples_per_file=8)
    assert not (tmp_path / "cut" / "export.json").exists()
    monkeypatch.setattr(exporter, "write_part", original)
    seen = []
    options = ExportOptions(format=to, samples_per_file=8, fields=LBANN_FIELDS if to == "lbann" else None)
    told = export(kinds.path, tmp_path / "cut", options, progress=lambda done, total: seen.append(done))
    assert seen[0] == 24  # three files were there
    if to != "lbann":  # its lists name the directory
        assert [f["digest"] for f in told["files"]] == [f["digest"] for f in whole["files"]]
    assert not list((tmp_path / "cut").glob("*.tar.*.tmp"))


def test_what_a_killed_zstd_export_left_is_removed(kinds, tmp_path, monkeypatch):
    write_raw, begun = MdsExporter._write_raw, []

    def stops(self, path, lo, hi):
        begun.append(path)
        if len(begun) == 2:
            raise KeyboardInterrupt
        write_raw(self, path, lo, hi)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MdsExporter, "_write_raw", stops)
        export_to(kinds, tmp_path, "mds", compression="zstd")
    begun[1].write_bytes(b"half")
    told = export_to(kinds, tmp_path, "mds", compression="zstd")
    assert {"export.json", "index.json", *(f["file"] for f in told["files"])} == set(names_in(tmp_path))


def test_a_file_that_was_lost_is_written_again(kinds, tmp_path):
    told = export_to(kinds, tmp_path, "npz")
    lost = tmp_path / told["files"][1]["file"]
    lost.unlink()
    again = export_to(kinds, tmp_path, "npz")
    assert lost.exists() and [f["digest"] for f in again["files"]] == [f["digest"] for f in told["files"]]


def test_several_processes_write_the_same_files(kinds, tmp_path):
    one = export_to(kinds, tmp_path / "one", "webdataset", samples_per_file=7)
    options = ExportOptions(format="webdataset", samples_per_file=7)
    two = export(kinds.path, tmp_path / "two", options, num_workers=2)
    assert one["files"] == two["files"]


def test_a_split_and_some_fields(kinds, tmp_path):
    from merlin.shards.ensemble import open_shards

    told = export_to(kinds, tmp_path, "npz", split="train", fields=("hits", "mesh"))
    with open_shards(kinds.path) as ens:
        wanted = ens.row[ens.splits["train"]]
    found = [np.load(tmp_path / entry["file"]) for entry in told["files"]]
    np.testing.assert_array_equal(np.concatenate([f["row"] for f in found]), wanted)
    assert [c["name"] for c in told["columns"] if c["role"] == "field"] == [
        "hits", "mesh.nodes", "mesh.edges", "mesh.targets"
    ]  # fmt: skip
    hits = [v for v, row in zip(kinds.values["hits"], kinds.rows, strict=True) if row in wanted]
    np.testing.assert_array_equal(np.concatenate([f["hits.values"] for f in found]), np.concatenate(hits))


def test_other_options_are_another_export(kinds, tmp_path):
    export_to(kinds, tmp_path, "npz")
    with pytest.raises(UsageError, match=r"an export that differs from this one in fields; .*--overwrite"):
        export_to(kinds, tmp_path, "npz", fields=("energy",))
    (tmp_path / "mine.txt").write_text("precious")
    told = export(kinds.path, tmp_path, ExportOptions(format="parquet"), overwrite=True)
    assert not list(tmp_path.glob("*.npz")) and (tmp_path / "mine.txt").exists()
    assert told["files"][0]["file"] == "data/samples_00000.parquet"


@pytest.mark.parametrize("format", ["npz", "zarr", "lbann"])
def test_an_export_stays_until_the_files_that_replace_it_are_complete(kinds, tmp_path, monkeypatch, format):
    out = tmp_path / "out"
    export_to(kinds, out, "parquet")
    before = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    options = ExportOptions(format=format, fields=("energy", "count"), samples_per_file=4)
    exporter = type(make_exporter(kinds.path, options))
    write_part = exporter.write_part

    def fail_at_the_second(self, directory, number, error=ShardError):
        if number == 1:
            raise error("row 5 is damaged")
        return write_part(self, directory, number)

    with monkeypatch.context() as patch, pytest.raises(ShardError, match="row 5"):
        patch.setattr(exporter, "write_part", fail_at_the_second)
        export(kinds.path, out, options, overwrite=True)
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            exporter, "write_part", lambda *args: fail_at_the_second(*args, error=KeyboardInterrupt)
        )
        export(kinds.path, out, options, overwrite=True)
    assert all((out / name).read_bytes() == data for name, data in before.items())

    written = []
    with monkeypatch.context() as patch:
        patch.setattr(exporter, "write_part", lambda *args: written.append(args[2]) or write_part(*args))
        export(kinds.path, out, options, overwrite=True)
    assert 0 not in written and 1 in written  # the first file was there
    export_to(kinds, tmp_path / "new", format, fields=("energy", "count"), samples_per_file=4)
    assert names_in(out) == names_in(tmp_path / "new")


@pytest.mark.parametrize("kills_at", range(9))
def test_no_export_is_a_mixture_of_two_after_a_kill(kinds, tmp_path, monkeypatch, kills_at):
    out, num = tmp_path / "out", 0
    export_to(kinds, out, "npz", fields=("energy",), samples_per_file=20)
    replace, unlink = Path.replace, Path.unlink

    def until(action):
        def act(path, *args, **more):
            nonlocal num
            if path.suffix in (".npz", ".json") and out in path.parents:
                if num == kills_at:
                    raise KeyboardInterrupt
                num += 1
            return action(path, *args, **more)

        return act

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(ExportDirectory, "_take_over", lambda *args: (  # what is killed is the exchange
            patch.setattr(Path, "replace", until(replace)), patch.setattr(Path, "unlink", until(unlink)),
            take_over(*args),
        ))  # fmt: skip
        export_to(kinds, out, "npz", fields=("count",), samples_per_file=20, overwrite=True)
    field = "energy"
    try:
        export_to(kinds, out, "npz", fields=("energy",), samples_per_file=20)
    except UsageError:
        export_to(kinds, out, "npz", fields=("count",), samples_per_file=20, overwrite=True)
        field = "count"
    assert all(field in np.load(path) for path in out.glob("*.npz"))
    assert len(list(out.glob("*.npz"))) == len(json.loads((out / "export.json").read_text())["files"])


take_over = ExportDirectory._take_over


@pytest.mark.parametrize("name", ["../thesis.tex", "/etc/passwd"])
def test_an_export_of_somebody_else_removes_nothing_outside(kinds, tmp_path, name):
    out = tmp_path / "out"
    export_to(kinds, out, "npz")
    description = json.loads((out / "export.json").read_text())
    (out / "export.json").write_text(json.dumps(description | {"described_by": [name]}))
    with pytest.raises(ShardError, match=f"lists {name}, which is not in the directory"):
        export_to(kinds, out, "npz", fields=("energy",), overwrite=True)


def names_in(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_directory_with_something_else_is_left_alone(kinds, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not empty and holds no export"):
            export(kinds.path, tmp_path, ExportOptions(format="npz"), overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_format_cannot_hold_is_said_before_anything_is_written(kinds, tmp_path):
    with pytest.raises(UsageError) as found:
        export(kinds.path, tmp_path / "out", ExportOptions(format="lbann"))
    message = str(found.value)
    assert "hits: LBANN reads the same number of values" in message
    assert "--fields energy,count,flag," in message and "mesh.nodes" not in message.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="--compression lz77 is not one of npz's: none, deflate"):
        export(kinds.path, tmp_path / "out", ExportOptions(format="npz", compression="lz77"))
    with pytest.raises(UsageError, match="no split 'dev'; it has: train, validation, test"):
        export(kinds.path, tmp_path / "out", ExportOptions(format="npz", split="dev"))
    with pytest.raises(UsageError, match="no field 'enrgy'; there are: energy"):
        export(kinds.path, tmp_path / "out", ExportOptions(format="npz", fields=("enrgy",)))
    with pytest.raises(UsageError, match="--trainers makes LBANN's"):
        export(kinds.path, tmp_path / "out", ExportOptions(format="npz", trainers=2))


def test_a_file_that_does_not_hold_what_it_should_is_an_error(kinds, tmp_path, monkeypatch):
    exporter = type(make_exporter(kinds.path, ExportOptions(format="npz")))
    monkeypatch.setattr(exporter, "count", lambda self, path: 3)
    with pytest.raises(ShardError, match="expected 25 samples in the file just written, found 3"):
        export_to(kinds, tmp_path, "npz")
    assert not list(tmp_path.glob("*.npz*"))


def test_two_exports_do_not_write_to_one_directory(kinds, tmp_path):
    def other(done: int, total: int) -> None:
        with pytest.raises(UsageError, match="another export is being written"):
            export_to(kinds, tmp_path, "npz")

    export(kinds.path, tmp_path, ExportOptions(format="npz"), progress=other)


def test_large_blocks_are_cut(kinds, monkeypatch):
    from merlin.shards.ensemble import open_shards
    from merlin.shards.export import view

    monkeypatch.setattr(view, "BLOCK_BYTES", 3000)
    with open_shards(kinds.path) as ens:
        chosen = view.View(ens, [*DENSE, *RAGGED])
        starts, num = [], 0
        for start, block in chosen.blocks(3, 50):
            starts.append(start)
            num += len(block["row"])
            assert len(block["mesh.nodes"]) == len(block["row"])
        assert num == 47 and starts[0] == 3 and len(starts) > 10


@pytest.mark.parametrize("step", [7, 60])
def test_zarr_files_end_where_parts_do_whatever_the_lengths(kinds, tmp_path, monkeypatch, step):
    """Ragged values are cut into files of their own; each is written once, with the part in which it begins."""
    import zarr

    from merlin.shards.export import zarr as exporter

    monkeypatch.setattr(exporter, "_FILE_BYTES", 256)
    monkeypatch.setattr(exporter, "_CHUNK_BYTES", 64)
    export_to(kinds, tmp_path, "zarr", samples_per_file=step)
    group = zarr.open_group(tmp_path / "data.zarr", mode="r")
    for name in RAGGED:
        values = group[f"fields/{name.replace('.', '/')}/values"]
        assert values.nchunks > 1 and len(list((tmp_path / "data.zarr" / values.path / "c").iterdir())) > 1
        np.testing.assert_array_equal(values[:], np.concatenate(kinds.values[name]))
    np.testing.assert_array_equal(group["fields/image"][:], kinds.values["image"])


@given(numbers=st.lists(st.integers(0, 100), max_size=60), limit=st.integers(1, 120))
def test_blocks_hold_all_rows_in_order_and_no_more_bytes_than_they_may(numbers, limit):
    sizes = np.array(numbers, dtype=np.int64)
    groups = list(stretches_of(sizes, limit))
    assert [0, *(b for _, b in groups)] == [*(a for a, _ in groups), len(sizes)]
    for a, b in groups:
        assert a < b and (b - a == 1 or sizes[a:b].sum() <= limit)


@pytest.mark.parametrize("to", FORMATS)
def test_a_data_set_without_samples_is_an_export_without_samples(tmp_path, to):
    from merlin.base.document.findings import Findings
    from merlin.shards.importing.run import import_data
    from merlin.spec.import_schema import parse_import_schema

    np.savez(tmp_path / "a.npz", x=np.zeros(0), y=np.zeros(0), image=np.zeros((0, 4, 4), "f4"))
    schema = parse_import_schema("inputs: [x]\nfields: {y: , image: }", Findings("schema"))
    import_data([tmp_path / "a.npz"], schema, tmp_path / "data")
    told = export(tmp_path / "data", tmp_path / "out", ExportOptions(format=to))
    assert told["num_samples"] == 0 and told["files"] == []
    assert export(tmp_path / "data", tmp_path / "out", ExportOptions(format=to)) == told


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_of_the_table_has_its_exporter(to):
    assert exporter_of(to).format == to


def test_a_data_set_of_a_study_leaves_with_its_parameters_and_failures(tmp_path):
    """Several sources, each sample once for each; rows name the samples."""
    from shard_study import make_study

    study = make_study(tmp_path / "ws", num=30, per_shard=8, params=({"X": 1, "M": "a"}, {"X": 2, "M": "b"}))
    study.not_run, study.skipped = {(0, 3)}, {(1, 4)}
    study.collect_all()
    path = study.finish()
    told = export(path, tmp_path / "out", ExportOptions(format="npz", samples_per_file=100))
    assert told["num_samples"] == 58
    with np.load(tmp_path / "out" / "samples_00000.npz") as found:
        assert found["X"].tolist() == [1] * 29 + [2] * 29 and set(found["M"]) == {"a", "b"}
        assert sorted(found["row"]) == sorted(set(range(60)) - {3, 34})
        np.testing.assert_array_equal(found["sample_id"], found["row"] % 30)
    told = export(path, tmp_path / "lbann", ExportOptions(format="lbann", samples_per_file=10))
    assert told["num_samples"] == 58
    schema = yaml.safe_load((tmp_path / "lbann" / "data_schema.yaml").read_text())
    scaled = schema["parameters"]["X"]["metadata"]
    assert (scaled["scale"], scaled["bias"]) == (1.0, -1.0)
