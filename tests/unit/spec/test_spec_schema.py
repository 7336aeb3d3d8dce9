"""The JSON Schema for editors says yes and no where the loader does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from merlin.spec.load import check_spec
from merlin.spec.schema import DIALECT, json_schema

HEAD = "description: {name: demo, description: d}\n"
RUN = HEAD + "study:\n- name: one\n  run: {cmd: echo, %s}\n"
FULL = """\
description: {name: $(NAME), description: d, author: me}
env:
  variables: {OUTPUT_PATH: ./out, N: 10, LIST: [1, 2]}
  labels:
  sources: [a.sh]
  dependencies: {paths: [{name: A, path: /tmp}], git: [{name: B, path: x, url: y, tag: z}]}
batch: {type: slurm, bank: b, nodes: $(N), walltime: 00:10:00, launch_pre: , custom: 3}
study:
- name: one
  description: x
  run: {cmd: true, nodes: $(P), procs: 4, exclusive: true, walltime: 60, priority: high, retry_delay: $(N),
        timeout: "1:00"}
- name: two
  run: {function: "m:f", depends: one, max_failures: 5%, batch: {type: flux}}
- name: three
  run:
    depends: [two_*]
    aggregate: {fields: {e: , i: {kind: image, shape: [4, $(N)]}}, splits: {train: 1}}
global.parameters: {P: {values: $(LIST), label: P.%%}}
merlin:
  resources:
    overlap: False
    workers: {$(NAME): {steps: [all], nodes: , batch: }, other: }
  samples:
    generate: {method: sobol, num: $(N), bounds: {X: [0, 1e-3]}}
    column_labels: [X]
user: [1, {a: b}]
"""


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_it_names_its_dialect() -> None:
    assert json_schema()["$schema"] == DIALECT


def test_a_spec_with_everything_in_it_is_valid(validator: jsonschema.Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(FULL))] == []


@pytest.mark.parametrize(
    "text",
    [
        "study: []\n",
        HEAD,
        RUN % "dependz: [a]",
        RUN % "nodes: 0",
        RUN.replace("cmd: echo", 'function: "m:f"') % "timeout: 3",
        RUN.replace("cmd: echo", 'function: "m:f"') % "restart: echo",
        RUN % "on_failure: ignore",
        RUN % "function: 'a:b'",
        RUN % "max_retries: many",
        RUN % "batch: {type: slrum}",
        RUN % "x: y" + "env: {variabels: {}}\n",
        HEAD + "study:\n- name: one\n",
        RUN % "procs: 1" + "merlin: {samples: {file: a}}\n",
        RUN % "procs: 1" + "merlin: {samples: {generate: {method: sobl}, column_labels: [X]}}\n",
    ],
)
def test_schema_and_loader_both_refuse(
    validator: jsonschema.Draft202012Validator, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(text)
    assert check_spec(path)[0] is None
    assert not validator.is_valid(yaml.safe_load(text))


def test_every_key_is_described() -> None:
    schema = json_schema()

    def undescribed() -> Iterator[str]:
        for name, block in schema["$defs"].items():
            for key, value in block.get("properties", {}).items():
                if not _description(value):
                    yield f"{name}.{key}"

    assert list(undescribed()) == []


def _description(value: dict[str, Any]) -> str:
    return str(value.get("description", ""))
