"""What a data set holds, for programs and in tables that fit."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from picture_data import make_data

from merlin.cli.data_set_text import lines
from merlin.cli.output import to_json
from merlin.shards.describe import describe, describe_data_set
from merlin.shards.description_rows import provenance
from merlin.shards.format.counts import Counts
from merlin.shards.format.manifest_file import PartInfo, read_manifest


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return describe(make_data(tmp_path_factory.mktemp("describe") / "w").directory)


def test_the_keys_are_stable(facts):
    data = json.loads(to_json(facts.to_json()))
    assert list(data) == [
        "path", "study", "aggregate", "counts", "sources", "extensions", "num_rows", "num_shards",
        "samples_per_shard", "size_bytes", "bytes_per_sample", "row_bytes", "sizes_from", "fields", "inputs",
        "parameters",
        "splits", "split_seed", "left_out", "content_digest",
    ]  # fmt: skip
    assert list(data["fields"][0]) == [
        "name", "kind", "dtype", "units", "description", "layout", "ragged", "graph", "role", "compression", "shuffle",
        "keep_bits", "expression", "shape", "axes", "channels", "bytes_per_sample", "stored_bytes_per_sample",
        "compression_ratio", "statistics", "lengths",
    ]  # fmt: skip
    assert list(data["left_out"][0]) == ["outcome", "source", "cause", "num", "examples"]
    assert list(data["splits"]) == ["train", "validation", "test"]
    assert set(data["study"]) >= {
        "name",
        "study_id",
        "spec_digest",
        "code_version",
        "seed",
        "created",
        "finished",
    }


def test_every_sample_that_is_left_out_has_a_cause(facts):
    found = {(group.outcome, group.cause): (group.num, group.examples) for group in facts.left_out}
    assert found == {
        ("failed", "RuntimeError: it broke & burned"): (2, (7, 8)),
        ("filtered", "count != 0 or energy != 100"): (1, (20,)),
        ("missing", "it did not run, or was interrupted"): (1, (59,)),
    }
    assert facts.data.counts.planned == facts.data.num_rows + sum(group.num for group in facts.left_out)


def test_sizes_are_of_a_sample(facts):
    sizes = {field.info.name: (field.row_bytes, field.stored_bytes) for field in facts.fields}
    assert sizes["energy"] == (8, 8)
    assert sizes["image"] == (432, 432)
    assert sizes["note"][0] != sizes["note"][0]
    assert sum(facts.data.splits.counts.values()) == facts.data.num_rows


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_tables_fit_the_terminal(facts, width):
    shown = list(lines(facts, width))
    assert max(len(line) for line in shown[2:] if facts.data.directory.name not in line) <= width
    text = "\n".join(shown)
    for expected in (
        "planned 60 = ok 56",
        "what it costs",
        "soft",
        "RuntimeError",
        "(samples 7, 8)",
        "spec digest",
    ):
        assert expected in text
    assert ("STATISTICS" in text) == (width < 130)


def test_compression_is_shown_with_what_it_saves(tmp_path):
    facts = describe(make_data(tmp_path / "w", compression="zstd").directory)
    density = next(field for field in facts.fields if field.info.name == "density")
    assert density.row_bytes == 480
    assert density.stored_bytes < 480
    text = "\n".join(lines(facts, 200))
    assert f"zstd {density.ratio:.1f}×" in text
    assert "compressed " in text


def test_the_members_of_a_graph_stand_together(tmp_path):
    facts = describe(make_data(tmp_path / "w", ragged=True).directory)
    shown = list(lines(facts, 80))
    at = next(i for i, line in enumerate(shown) if line.split()[:2] == ["mesh", "graph"])
    assert [line.split()[0] for line in shown[at + 1 : at + 5]] == ["nodes", "positions", "edges", "targets"]
    assert "*×3" in shown[at + 2]
    nodes = next(field for field in facts.fields if field.info.name == "mesh.nodes")
    assert nodes.row_bytes == pytest.approx(nodes.info.lengths.mean[0] * 16 + 8, rel=0.02)


def test_sources_with_parameters_are_listed(tmp_path):
    study = make_data(tmp_path / "w", params=({"P": 1}, {"P": 2}))
    text = "\n".join(lines(describe(study.directory), 100))
    assert "SOURCES" in text
    assert "sim/P1" in text


def test_samples_of_an_extension_are_numbered_through(tmp_path):
    data = read_manifest(make_data(tmp_path / "w").directory)
    source, failure = data.sources[0], data.failures[0]
    more = replace(source, workspace="extensions/001", first_row=60, first_sample=60)
    grown = replace(
        data, sources=(source, more), failures=(failure, replace(failure, workspace="extensions/001"))
    )
    facts = describe_data_set(grown)
    failed = [(group.source, group.examples) for group in facts.left_out if group.outcome == "failed"]
    assert failed == [("sim", (7, 8)), ("extensions/001/sim", (67, 68))]
    assert "extensions/001/sim" in "\n".join(lines(facts, 100))


@pytest.mark.parametrize(
    ("num", "words"), [(4, ["extensions/001", "extensions/002"]), (6, ["5 extensions", "extensions/002"])]
)
def test_many_extensions_that_lack_nothing_are_one_line(facts, num, words):
    def part(number):
        counts = Counts(
            planned=10, ok=8, failed=int(number == 2), skipped=0, missing=0, filtered=2 - (number == 2)
        )
        more = {"splits": {}, "fields": (), "columns": ()}
        return PartInfo(
            workspace=f"extensions/{number:03}",
            rows=(0, 10),
            study={"finished": f"day {number}"},
            counts=counts,
            **more,
        )

    data = replace(facts.data, parts=tuple(part(number) for number in range(1, num + 1)))
    shown = {what: text for what, text in provenance(replace(facts, data=data)) if "extension" in what}
    assert list(shown)[:2] == words
    if num == 6:
        ok = "planned 50 = ok 40 + failed 0 + filtered 10 + skipped 0 + missing 0"
        assert shown["5 extensions"] == f"{ok}, finished day 1 to day 6"


def test_a_path_stays_whole_on_a_narrow_terminal(facts):
    assert any(line.endswith(str(facts.data.directory)) for line in list(lines(facts, 40))[1:])
