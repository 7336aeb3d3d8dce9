"""The comparison of a model with a linear one and with the nearest neighbour."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
import torch
from digit_data import make_digit_data
from msgspec.structs import replace
from scipy.spatial import KDTree
from surrogate_data import arrays, make_surrogate_data
from train_run import YAML, prepare_run, train_run
from trained import make_trained

from merlin.cli.main import main
from merlin.errors import TrainingError
from merlin.shards.ensemble import open_shards
from merlin.train.config_file import load_config, parse_config
from merlin.train.prepare import check, open_data
from merlin.train.results import baseline
from merlin.train.results.baseline import Comparison, compare_run
from merlin.train.results.evaluate import evaluate
from merlin.train.results.report.tables import baseline_table
from merlin.train.run_directory import RunDirectory


def compared(run: RunDirectory) -> Comparison | None:
    return compare_run(run, load_config(run.config_path).config)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    words = (
        "fields.scalars=[energy, radius]",
        "model.width=64",
        "optimizer.lr=0.005",
        "training.validate_every=100",
    )
    return make_trained(tmp_path_factory.mktemp("trained"), *words, steps=400)


def inputs_and_outputs(run: RunDirectory, split: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """All samples of a split, normalised."""
    data = open_data(run, load_config(run.config_path).config)
    dataset = data.dataset(split)
    batch = {name: values.numpy().astype(float) for name, values in dataset[np.arange(len(dataset))].items()}
    scalars = {name: batch["scalars"][:, i : i + 1] for i, name in enumerate(("energy", "radius"))}
    return batch["inputs"], {**scalars, "image": batch["image"].reshape(len(batch["image"]), -1)}


def test_the_errors_are_those_of_least_squares_and_of_the_nearest_sample(run: RunDirectory) -> None:
    found = compared(run)
    assert found is not None
    (x, known), (x_held, true) = (inputs_and_outputs(run, split) for split in ("train", "validation"))
    assert (found.num_samples, found.num_known, found.num_fitted) == (len(x_held), len(x), len(x))
    ones, ones_held = (np.column_stack([values, np.ones(len(values))]) for values in (x, x_held))
    nearest = KDTree(x).query(x_held)[1]
    for name, values in true.items():
        spread = np.square(values - values.mean(0)).sum()
        linear = ones_held @ np.linalg.lstsq(ones, known[name], rcond=None)[0]
        for who, made in (("linear", linear), ("nearest", known[name][nearest])):
            expected = np.sqrt(np.square(made - values).sum() / spread)
            assert found.fields[name][who] == pytest.approx(expected, rel=1e-3)


def test_a_model_that_has_learned_is_better_and_one_that_has_not_is_named(run, tmp_path) -> None:
    learned = compared(run)
    assert learned is not None and not learned.not_better and "NO BETTER" not in learned.sentence()
    assert learned.error("model") < 0.7 * min(learned.error("linear"), learned.error("nearest"))
    young = compared(make_trained(tmp_path, "fields.scalars=[energy, radius]", steps=1))
    assert young is not None and young.not_better == ("energy", "radius", "image")
    assert "NO BETTER than a baseline for anything" in young.sentence()


def test_training_ends_with_the_comparison(tmp_path, capsys) -> None:
    data = make_surrogate_data(tmp_path / "d", 400)
    words = [f"directory={tmp_path / 'run'}", "training.steps=10", "fields.images=[]"]
    (tmp_path / "c.yaml").write_text(f"data: {data}\nmodel: {{name: regressor, width: 8}}\n")
    with pytest.raises(SystemExit) as end:
        main(["train", str(tmp_path / "c.yaml"), *words])
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert end.value.code == 0 and last.startswith("baseline: median error of 3 fields")
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path / "run"), "--json"])
    told = json.loads(capsys.readouterr().out)["baseline"]
    assert set(told["median_error"]) == {"model", "linear", "nearest"} and set(told["fields"]) == {
        "energy",
        "radius",
        "time",
    }


def test_an_evaluation_has_the_comparison_on_its_own_samples(run: RunDirectory) -> None:
    assert evaluate(run.path).facts["baseline"]["split"] == "test"
    # its own neighbours would be there, and the training samples of other data are not known
    assert evaluate(run.path, split="train").facts["baseline"] is None
    assert evaluate(run.path, split="all").facts["baseline"] is None


def test_errors_that_are_not_finite_are_the_worst(run: RunDirectory) -> None:
    found = compared(run)
    assert found is not None
    fields = {**found.fields, "energy": {**found.fields["energy"], "model": math.nan}}
    broken = replace(found, fields=fields)
    assert broken.not_better == ("energy",)
    facts = msgspec.json.decode(msgspec.json.encode(broken.to_json()))
    assert facts["fields"]["energy"]["model"] is None and "– (energy)" in baseline_table(facts)


def test_classes_are_compared_by_how_many_are_wrong(tmp_path) -> None:
    torch.set_num_threads(1)
    words = (
        "model={name: classifier, width: 64, depth: 1}", "fields={inputs: [image], classes: [label]}",
        "training.steps=80", "training.validate_every=40", "optimizer.lr=0.01",
    )  # fmt: skip
    text = YAML.format(data=make_digit_data(tmp_path / "digits"), directory=tmp_path / "run")
    found = compared(train_run(check(parse_config(text, "train.yaml", words)))[0])
    assert found is not None and set(found.fields) == {"label"}
    # pictures of digits are far apart, so that all of them tell classes well
    assert all(0 <= error < 0.2 for error in found.fields["label"].values())


def test_only_what_is_predicted_is_compared(tmp_path, monkeypatch) -> None:
    data = make_surrogate_data(tmp_path / "d", 400)

    def result(model: str, *words: str) -> Comparison | None:
        directory = tmp_path / model.partition(":")[2]
        made = prepare_run(data, directory, f"model.name={model}", "training.steps=2", *words)
        return compared(train_run(made)[0])

    assert result("tiny_models:Noisy") is None  # it has no `predict`
    words = ("fields.images=[image]", "fields.scalars=[energy]")
    found = result("tiny_models:Blind", *words)
    assert found is not None and set(found.fields) == {"energy"}
    with pytest.raises(
        TrainingError, match="the model tiny_models:Stumbling fails: RuntimeError: on its way"
    ):
        result("tiny_models:Stumbling", *words)
    words = (*words, "model.how=key", "model.late=true")
    with pytest.raises(TrainingError, match="the model tiny_models:Wrong predicts only 'scalar'"):
        result("tiny_models:Wrong", *words)


def test_a_model_that_fails_on_its_way_is_trained_all_the_same(tmp_path, capsys, monkeypatch) -> None:
    data = make_surrogate_data(tmp_path / "d", 400)
    (tmp_path / "c.yaml").write_text(
        f"data: {data}\nmodel: {{name: 'tiny_models:Stumbling'}}\nfields: {{images: []}}\n"
    )
    with pytest.raises(SystemExit) as end:
        main(["train", str(tmp_path / "c.yaml"), f"directory={tmp_path / 'run'}", "training.steps=2"])
    captured = capsys.readouterr()
    assert end.value.code == 0 and "was not compared with baselines" in captured.err


def test_many_inputs_leave_the_linear_model_out(run: RunDirectory, monkeypatch) -> None:
    monkeypatch.setattr(baseline, "MOST_FEATURES", 3)
    found = compared(run)
    assert found is not None and found.num_fitted == 0 and found.error("linear") is None
    assert "linear" not in found.sentence()


def test_a_field_that_does_not_vary_where_it_is_judged_is_left_out(tmp_path) -> None:
    splits = open_shards(make_surrogate_data(tmp_path / "once", 400)).splits
    radius = arrays(400)["radius"]
    radius[splits["validation"]] = 3.0
    data = make_surrogate_data(tmp_path / "d", 400, radius=radius)
    words = ("fields.images=[]", "fields.scalars=[energy, radius]", "model={name: regressor, width: 8}")
    found = compared(train_run(prepare_run(data, tmp_path / "run", *words, "training.steps=2"))[0])
    assert found is not None and set(found.fields) == {"energy"}
