"""Fields, graphs, compression and expressions in a spec: what is refused, where, and what is suggested."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from merlin.base.kinds import axes_of, layout_of
from merlin.errors import Diagnostic
from merlin.plan.fields import plan_fields
from merlin.spec.load import check_spec, load_spec
from merlin.spec.schema import json_schema

MEMBERS = 'members: {nodes: {shape: ["*"]}'
SPEC = """\
description: {name: demo, description: d}
merlin:
  samples:
    generate: {method: uniform, num: 10, bounds: {x: [0, 1]}}
    column_labels: [x]
study:
- name: sim
  run: {cmd: "echo $(x) $(P) > out.json"}
- name: collect
  run:
    depends: [sim_*]
    aggregate:
      from: sim
      %s
      fields:
        yield: {file: out.json, key: e}
        trace: {kind: series, shape: [16], file: t.npy}
        %s
global.parameters: {P: {values: [1, 2], label: P.%%%%}}
"""
FULL = """
description: {name: demo, description: d}
study:
- name: sim
  run: {function: "m:f"}
- name: collect
  run:
    depends: [sim]
    aggregate:
      valid: [yield > 0, "len(mol.nodes) > 1"]
      compression: zstd
      shuffle: bit
      level: 9
      cleanup: false
      fields:
        yield: {keep_bits: 10, dtype: float32}
        image: {kind: image, shape: [3, 8, 8], layout: chw, channels: [r, g, b], level: 3}
        list: {kind: ragged, shape: ["*"]}
        items: {shape: [null, 3]}
        d: {expression: log10(yield), units: dex, shuffle: none}
        mol:
          kind: graph
          members: {nodes: {shape: ["*", 4]}, edges: , targets: }
"""


def findings(tmp_path: Path, field: str = "", aggregate: str = "") -> list[Diagnostic]:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC % (aggregate or "samples_per_shard: 5", field))
    return check_spec(path)[1]


@pytest.mark.parametrize(
    ("field", "col", "message", "hint"),
    [
        ("a: {kind: ragged, file: a.npy, shape: [3]}", 47, 'begin with "*"', '["*"] or ["*", 3]'),
        ("a: {kind: text, file: a.txt, shape: [\"*\"]}", 45, "cannot be ragged", ""),
        ("a: {kind: scalar, file: a.npy, shape: [\"*\", 3]}", 47, "an item has 1 axes", ""),
        ("a: {file: a.npy, shape: [3, \"*\"]}", 33, "only the first axis may have any length", '["*", 3]'),
        ("a: {file: a.npy, shape: 3}", 33, "must be a list of sizes", ""),
        ("a: {kind: imgae, file: a.npy}", 19, "is not allowed", "did you mean 'image'?"),
        ("a: {kind: image, file: a.npy, shape: [4, 4], layout: xy}", 62, "no layout for kind image", "hwc or chw"),
        ("a: {kind: image, file: a.npy, shape: [4, 4], layout: chw}", 62, "the layout chw has 3 axes", ""),
        ("a: {kind: series, file: a.npy, shape: [4], layout: w}", 52, "layout is for images and volumes", ""),
        ("a: {kind: image, file: a.npy, shape: [4, 4, 3], channels: [r]}", 67, "its shape has 3", ""),
        ("a: {kind: image, file: a.npy, shape: [2, 4, 4], axes: [channel, y, x], channels: [r]}", 90, "has 2", ""),
        (
            "a: {kind: image, file: a.npy, shape: ['*', 2, 4, 4], axes: [i, channel, y, x], channels: [r]}",
            98,
            "its shape has 2",
            "",
        ),
        ("a: {kind: image, file: a.npy, shape: [4, 4], channels: [r]}", 64, "no axis for them", "hwc"),
        ("a: {kind: image, file: a.npy, shape: [2, 4, 4], layout: chw, channels: [r, r]}", 80, "a channel twice", ""),
        ("a: {file: a.json, dtype: float32, keep_bits: 24}", 54, "float32 has 23 bits of mantissa", ""),
        ("a: {file: a.json, dtype: int8, keep_bits: 2}", 40, "keep_bits is for floats, not for int8", ""),
        ("a: {file: a.json, compression: gzip, level: 12}", 53, "gzip has levels 0 to 9", ""),
        ("a: {file: a.json, compresion: gzip}", 27, "unknown key 'compresion'", "did you mean 'compression'?"),
        ("a: {file: a.json, shuffle: bits}", 36, "is not allowed", "did you mean 'bit'?"),
        ("a: {expression: yeild + 1}", 25, "'yeild' is no field, input or parameter", "did you mean 'yield'?"),
        ("a: {expression: 'yield +'}", 33, "expected a value, found the end", ""),
        ("a: {expression: lgo(yield)}", 25, "no function 'lgo'", "did you mean 'log'?"),
        ("a: {expression: trace * 2}", 25, "its value is values of shape [16]", "shape: [16]"),
        ("a: {expression: yield / 2, dtype: int32}", 25, "which int32 does not hold", "float64"),
        ("a: {expression: yield > 2, dtype: bool, file: x.json}", 13, "has both file and expression", ""),
        ("a: {expression: a + 1}", 25, "it is derived from itself", ""),
        ("a: {members: {nodes: }, file: a.json}", 13, "only a graph has", "kind: graph"),
        ("a: {kind: graph, file: g.npz}", 9, "has no members", ""),
        ("a: {kind: graph, file: g.npz, members: {edges: }}", 39, "neither nodes nor positions", ""),
        ("a: {kind: graph, file: g.npz, members: {nodes: {shape: [3]}}}", 64, 'has to be ["*"] or ["*", n]', ""),
        ("a: {kind: graph, file: g.npz, " + MEMBERS + ", edge: }}", 78, "'edge' is not allowed", "mean 'edges'?"),
        ("a: {kind: graph, file: g.npz, shape: [2], " + MEMBERS + "}}", 39, "shape belongs to its members", ""),
        ("a: {kind: graph, members: {nodes: {shape: [\"*\"]}}}", 36, "does not say which file", ""),
        ("a/b: {file: a.json}", 9, "cannot name a field", ""),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_is_refused_in_its_place(
    tmp_path: Path, field: str, col: int, message: str, hint: str
) -> None:
    found = [d for d in findings(tmp_path, field) if message in d.message]
    assert found, [d.message for d in findings(tmp_path, field)]
    assert (found[0].line, found[0].col) == (18, col)
    assert hint in found[0].hint


@pytest.mark.parametrize(
    ("aggregate", "col", "message"),
    [
        ("valid: yeild > 1", 14, "'yeild' is no field"),
        (
            "valid: [yield > 1, trace > 2]",
            26,
            "has to be true or false for a sample, not values of shape [16]",
        ),
        ("valid: yield", 14, "has to be true or false for a sample, not a number"),
        ("valid: 'yield > 1 and Q < 2'", 29, "'Q' is no field, input or parameter"),
        ("valid: x and yield > 1", 14, "has to be true or false"),
        ("{compression: zstd, level: 30}", 1, "zstd has levels 1 to 22"),
        ("cleanup: maybe", 16, "neither true nor false"),
    ],
)
def test_what_an_aggregate_cannot_do_is_refused_in_its_place(
    tmp_path: Path, aggregate: str, col: int, message: str
) -> None:
    text = aggregate.strip("{}").replace(", level", "\n      level") if aggregate[0] == "{" else aggregate
    found = [d for d in findings(tmp_path, aggregate=text) if message in d.message]
    assert found, [d.message for d in findings(tmp_path, aggregate=text)]
    if aggregate[0] != "{":
        assert (found[0].line, found[0].col) == (14, col)


@pytest.mark.parametrize("valid", ["yield > x", "P == 1 or x < 0.5", "0 < yield < $(P)", "true"])
def test_inputs_parameters_and_tokens_may_be_used(tmp_path: Path, valid: str) -> None:
    assert findings(tmp_path, aggregate=f"valid: '{valid}'") == []


def test_in_expressions_members_have_the_dtype_of_their_role_or_graph(tmp_path: Path) -> None:
    members = '{nodes: {shape: ["*", 2]}, edges: , targets: {shape: [2], dtype: bool}}'
    graph = f"g: {{kind: graph, file: g.npz, dtype: int32, members: {members}}}"
    total = "a: {expression: sum(g.nodes) + sum(g.edges), dtype: int64}"
    assert findings(tmp_path, f"{graph}\n        {total}", "valid: any(g.targets)") == []
    found = findings(tmp_path, graph.replace("edges: ", "edges: {expression: g.nodes / 2}"))
    assert any("which int64 does not hold" in d.message for d in found)
    assert any(
        "'g.nodes' is complex" in d.message
        for d in findings(tmp_path, f"{graph.replace('int32', 'complex64')}\n        {total}")
    )


def test_a_field_named_as_a_member_is_none(tmp_path: Path) -> None:
    fields = "a.edges: {file: x.json}\n        b: {expression: a.edges / 2}"
    assert findings(tmp_path, fields) == []


def test_a_member_may_not_have_the_name_of_a_field(tmp_path: Path) -> None:
    graph = 'g: {kind: graph, file: g.npz, members: {nodes: {shape: ["*"]}}}\n        g.nodes: {file: x.json}'
    assert any("is a member of the graph g" in d.message for d in findings(tmp_path, graph))


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("X: {file: a.json, key: e}", "field_X and input_x"),
        ("P: {file: a.json, key: e}", "field_P and param_P"),
        ("x: {kind: vector, file: a.npy, shape: [3]}", ""),  # no column of queries
    ],
)
def test_a_scalar_that_has_the_name_of_an_input_is_warned_of(tmp_path: Path, field: str, hint: str) -> None:
    found = [(d.severity, hint in d.hint) for d in findings(tmp_path, field) if d.code == "name-clash"]
    assert found == ([("warning", True)] if hint else [])


def test_clean_up_warns_where_it_will_do_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    later = "- name: late\n  run: {cmd: 'ls $(sim.workspace)', depends: [collect]}\nglobal.parameters:"
    path.write_text((SPEC % ("cleanup: true", "")).replace("global.parameters:", later))
    (found,) = check_spec(path)[1]
    assert found.severity == "warning"
    assert "step 'late' reads the files of 'sim' after 'collect'" in found.message
    text = SPEC % ("cleanup: true", "")
    for old, new in (
        ('cmd: "echo $(x) $(P) > out.json"', 'function: "m:f"'),
        ("file: out.json, key: e", ""),
        (", file: t.npy", ""),
    ):
        text = text.replace(old, new)
    path.write_text(text)
    (found,) = check_spec(path)[1]
    assert "nothing to clean up" in found.message


def test_the_schema_for_editors_knows_all_of_it() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    assert [error.message for error in validator.iter_errors(yaml.safe_load(FULL))] == []
    for old, new in (
        ("bit\n", "bits\n"),
        ("kind: image", "kind: picture"),
        ("nodes: {shape", "noodles: {shape"),
    ):
        assert list(validator.iter_errors(yaml.safe_load(FULL.replace(old, new))))


def test_a_bare_star_is_explained(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, "a: {file: a.npy, shape: [*, 3]}")
    assert found.hint == 'quote a star of its own: "*"'


class TestPlannedFields:
    def fields(self, tmp_path: Path):
        path = tmp_path / "spec.yaml"
        path.write_text(FULL)
        spec = load_spec(path)
        block = spec.document.study[1].run.aggregate
        assert block is not None
        return {field.name: field for field in plan_fields(block.fields, lambda text: text)}

    def test_shapes_are_taken_apart(self, tmp_path: Path) -> None:
        fields = self.fields(tmp_path)
        assert (fields["list"].ragged, fields["list"].shape, fields["list"].ndim) == (True, (), 1)
        assert (fields["items"].kind, fields["items"].shape, fields["items"].ndim) == ("ragged", (3,), 2)
        assert (fields["yield"].ragged, fields["yield"].shape, fields["yield"].keep_bits) == (False, (), 10)

    def test_images_have_a_layout_and_names_of_axes(self, tmp_path: Path) -> None:
        image = self.fields(tmp_path)["image"]
        assert (image.layout, image.axes, image.channels) == ("chw", ("channel", "y", "x"), ("r", "g", "b"))

    def test_a_derived_field_has_no_other_source(self, tmp_path: Path) -> None:
        field = self.fields(tmp_path)["d"]
        assert (field.expression, field.output, field.file) == ("log10(yield)", None, None)

    def test_a_graph_is_its_members(self, tmp_path: Path) -> None:
        fields = self.fields(tmp_path)
        nodes, edges, targets = (fields[f"mol.{role}"] for role in ("nodes", "edges", "targets"))
        assert (nodes.path, nodes.output, nodes.graph, nodes.role) == (
            "fields/mol/nodes",
            "mol.nodes",
            "mol",
            "nodes",
        )
        assert (edges.dtype, edges.shape, edges.ragged) == ("int64", (2,), True)
        assert (targets.kind, targets.ragged) == ("scalar", False)


@pytest.mark.parametrize(
    ("kind", "num", "axes", "layout"),
    [
        ("image", 2, (), "hw"),
        ("image", 3, (), "hwc"),
        ("image", 3, ("channel", "y", "x"), "chw"),
        ("image", 3, ("x", "y", "channel"), "whc"),
        ("image", 3, ("row", "column", "band"), "hwc"),
        ("image", 3, ("channel", "row", "column"), "chw"),
        ("volume", 4, (), "dhwc"),
        ("volume", 3, ("x", "y", "z"), "whd"),
        ("series", 1, (), ""),
    ],
)
def test_a_layout_follows_from_the_names_of_the_axes(
    kind: str, num: int, axes: tuple[str, ...], layout: str
) -> None:
    assert layout_of(kind, num, axes) == layout


def test_axes_are_named_by_the_layout() -> None:
    assert axes_of("dhwc") == ("z", "y", "x", "channel")
    assert axes_of("hw", ragged=True) == ("item", "y", "x")
    assert axes_of("") == ()


@pytest.mark.parametrize(
    ("field", "aggregate", "told"),
    [
        ("a: {file: a.npy, shuffle: bit}", "splits: {train: 1}", ["field a: shuffle"]),
        ("a: {file: a.npy, level: 3, compression: none}", "compression: zstd", ["field a: level"]),
        ("a: {file: a.npy, shuffle: bit, level: 3}", "compression: zstd", []),
        ("a: {file: a.npy, shuffle: none}", "compression: none", []),
        ("a: {file: a.txt, kind: text, compression: zstd}", "splits: {train: 1}", ["field a: compression"]),
        ("a: {file: a.txt, kind: text}", "compression: zstd", []),
        ("a: {file: a.npy}", "shuffle: bit\n      level: 3", ["step 'collect': shuffle", "step 'collect': level"]),
        ("a: {file: a.npy, compression: gzip}", "shuffle: bit\n      level: 3", []),
        (
            'g: {kind: graph, file: g.npz, compression: zstd, members: {nodes: {shape: ["*"], shuffle: bit}}}',
            "seed: 1", [],
        ),
        ('g: {kind: graph, file: g.npz, members: {nodes: {shape: ["*"], shuffle: bit}}}', "seed: 1", ["g.nodes"]),
    ],
)  # fmt: skip
def test_settings_of_compression_that_do_nothing_are_warned_of(
    tmp_path: Path, field: str, aggregate: str, told: list[str]
) -> None:
    found = findings(tmp_path, field, aggregate)
    assert [d.severity for d in found] == ["warning"] * len(told), found
    assert all(text in d.message for text, d in zip(told, found, strict=True))
