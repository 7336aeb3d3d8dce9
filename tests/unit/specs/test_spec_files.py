"""The studies in specs/ are valid, and what they declare is what their codes produce."""

from __future__ import annotations

from pathlib import Path

import icf
import numpy as np
import pytest

from merlin.spec.load import check_spec

SPECS = Path(__file__).parents[3] / "specs"


@pytest.mark.parametrize("path", sorted(SPECS.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_the_spec_is_valid_without_warnings(path: Path) -> None:
    spec, diagnostics = check_spec(path)
    assert spec is not None
    assert diagnostics == []


def test_icf_collects_exactly_what_its_function_returns() -> None:
    spec, _ = check_spec(SPECS / "icf" / "icf.yaml")
    assert spec is not None and spec.document.merlin.samples is not None
    generate = spec.document.merlin.samples.generate
    assert generate is not None and generate.bounds is not None
    low, high = ({label: np.array([b[k]]) for label, b in generate.bounds.items()} for k in (0, 1))
    aggregate = spec.document.study[1].run.aggregate
    assert aggregate is not None
    for corner in (low, high):
        results = icf.simulate(corner, None)
        returned = {name: field for name, field in aggregate.fields.items() if field.expression is None}
        assert set(results) == set(returned)
        for name, field in returned.items():
            assert results[name].shape == (1, *field.shape)
            assert results[name].dtype == np.dtype(field.dtype)


def test_icf_train_makes_the_data_of_icf() -> None:
    plain, trained = (check_spec(SPECS / "icf" / name)[0] for name in ("icf.yaml", "icf_train.yaml"))
    assert plain is not None and trained is not None
    assert trained.document.study[:2] == plain.document.study
    assert trained.document.merlin == plain.document.merlin


@pytest.mark.parametrize("path", sorted((SPECS / "icf" / "train").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_trained_on_icf_is_selected_and_normalised_alike(path: Path) -> None:
    from merlin.train.config_file import load_config

    first = load_config(SPECS / "icf" / "train" / "autoencoder.yaml").config
    config = load_config(path).config
    assert (config.fields, config.normalise) == (first.fields, first.normalise)
    assert {*config.fields.inputs, *config.fields.scalars, *config.fields.images} <= {
        *icf.simulate({label: np.array([0.01]) for label in config.fields.inputs}, None),
        *config.fields.inputs,
    }


def test_no_example_needs_a_launcher() -> None:
    assert not [path for path in SPECS.rglob("*.yaml") if "LAUNCHER)" in path.read_text(encoding="utf-8")]
