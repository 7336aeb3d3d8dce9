"""The schema of an import: what it may leave out, and where its mistakes are."""

from __future__ import annotations

import pytest

from merlin.base.document.findings import Findings
from merlin.errors import SpecError
from merlin.spec.import_schema import parse_import_schema, read_import_schema


def parse(text: str):
    return parse_import_schema(text, Findings("schema.yaml"))


def test_columns_are_named_in_three_ways():
    short = parse("inputs: [x]\nfields: {y: }")
    assert short.inputs["x"].key is None and short.fields["y"].kind is None
    assert parse("inputs: {x: a}\nfields: {y: {}}").inputs["x"].key == "a"
    long = parse("inputs: {x: {key: a, file: 'b*'}}\nfields: {y: {path: p}, z: {column: 3}}\nsample_id: id")
    assert (long.inputs["x"].file, long.fields["y"].key, long.fields["z"].key) == ("b*", "p", "3")
    assert long.sample_id is not None and long.sample_id.key == "id"


def test_defaults_are_an_aggregates():
    schema = parse("fields: {y: }")
    assert schema.splits == {"train": 0.8, "validation": 0.1, "test": 0.1}
    assert (schema.samples_per_shard, schema.compression, schema.bad_values) == (1000, "none", "refuse")


def test_shapes_of_ragged_fields_begin_with_a_star():
    assert parse('fields: {y: {shape: ["*", 3]}, z: {shape: [4, 4]}}').fields["y"].shape == (None, 3)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("fields:\n  y: {unit: J}", (2, 7), "unknown key 'unit' in fields.y"),
        ("fields:\n  y: {kind: picture}", (2, 13), "'picture' is not allowed"),
        ("fields:\n  y: {dtype: float31}", (2, 14), "'float31' is no type of a field"),
        ('fields:\n  y: {shape: [3, "*"]}', (2, 14), "only the first axis may have any length"),
        ("fields:\n  y: {shape: 3}", (2, 14), "must be a list of sizes"),
        ("fields:\n  a/b: {}", (2, 3), "not a name for a column"),
        ("fields:\n  g: {kind: graph}", (2, 3), "a graph needs members"),
        ("fields:\n  g: {kind: graph, members: {bones: {}}}", (2, 30), "'bones' is no part of a graph"),
        ("fields:\n  y: {layout: hwx}", (2, 15), "'hwx' is no layout"),
        ("fields: {}", (1, 1), "the schema has no fields"),
        ("inputs: [x]", (1, 1), "the schema has no fields"),
        ("fields: {y: }\nsplits: {a: 0.9, b: 0.3}", (2, 1), "splits sum to 1.2"),
        ("fields: {y: }\nsplits: {a: 0.5, b: 0.3}", (2, 1), "splits sum to 0.8"),
        ("fields: {y: }\nsplits: {a: 1.5, b: -0.5}", (2, 21), "split b is -0.5"),
        ('fields: {y: }\nsplits: {a: 0.5, "": 0.5}', (2, 22), "a split has no name"),
        ("fields: {y: }\nbad_values: ignore", (2, 13), "'ignore' is not allowed"),
        ("fields: {y: }\nfields: {z: }", (2, 1), "key 'fields' is given twice"),
        ("fields: [", (2, 1), "bad YAML"),
        ("", (1, 1), "the schema is empty"),
    ],
)
def test_a_mistake_is_found_at_its_place(text, place, message):
    with pytest.raises(SpecError) as found:
        parse(text)
    assert any(message in d.message and (d.line, d.col) == place for d in found.value.diagnostics), (
        found.value
    )


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(SpecError) as found:
        parse("feilds: {y: }\nfields: {y: {kind: graph}, z: {dtype: int31}}\nseed: x")
    assert len(found.value.diagnostics) == 4


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(SpecError, match="cannot read the schema"):
        read_import_schema(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_import_schema(tmp_path / "latin.yaml")
