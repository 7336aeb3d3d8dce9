"""Configurations: every finding at once, at its place, with what there is instead."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from imported_data import import_arrays
from surrogate_data import arrays, make_surrogate_data

from merlin.base.document.findings import Findings
from merlin.base.yaml_text import yaml_text
from merlin.errors import ConfigError, MerlinError, NotADataSetError, ShardError, TrainingError, UsageError
from merlin.shards.importing.run import import_data
from merlin.spec.import_schema import parse_import_schema
from merlin.train.config import TrainConfig, json_schema
from merlin.train.config_file import load_config, parse_config
from merlin.train.prepare import check, prepare

MINIMAL = "data: somewhere\nmodel: {name: regressor}\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


def findings(text: str, *words: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse_config(text, "c.yaml", words)
    return [d.render() for d in raised.value.diagnostics]


def checked(data: Path, text: str, *words: str):
    return check(parse_config(f"data: {data}\n{text}", "c.yaml", words))


def refused(data: Path, text: str, *words: str) -> str:
    with pytest.raises(MerlinError) as raised:
        checked(data, text, *words)
    return str(raised.value)


def test_all_findings_come_at_once_with_their_places() -> None:
    found = findings(
        "data: x\n"
        "modle: {name: regressor}\n"
        "training:\n"
        "  batch_size: many\n"
        "  precison: bf16\n"
        "optimizer: {name: adm, lr: 0}\n"
        "schedule: {name: cosine, warmup_steps: -1}\n"
        "normalise: {inputs: standrd}\n"
    )
    assert found == [
        "c.yaml:1:1: error: the configuration has no model\n    model: What is trained.",
        "c.yaml:2:1: error: unknown key 'modle' in the configuration\n    did you mean 'model'?",
        "c.yaml:4:15: error: training.batch_size: 'many' is not a whole number\n"
        "    write a whole number, at least 1",
        "c.yaml:5:3: error: unknown key 'precison' in training\n    did you mean 'precision'?",
        "c.yaml:6:19: error: optimizer.name: 'adm' is not allowed\n"
        "    did you mean 'adam'? allowed: adam, adamw, sgd",
        "c.yaml:6:28: error: optimizer.lr: must be above 0, not 0",
        "c.yaml:7:40: error: schedule.warmup_steps: must be at least 0, not -1",
        "c.yaml:8:21: error: normalise.inputs: 'standrd' is no normalisation\n"
        "    there are: standard, minmax, log, scale, none",
    ]


def test_words_override_values_and_add_them() -> None:
    words = [
        "training.epochs=20",
        "optimizer.lr=1e-4",
        "model.widths=[8, 16]",
        "tournament.trainers=4",
        "seed=7",
    ]
    config = parse_config(MINIMAL, "c.yaml", words).config
    assert config.training.epochs == 20 and config.optimizer.lr == 1e-4 and config.seed == 7
    assert config.model.options == {"widths": [8, 16]} and config.tournament.trainers == 4


def test_wrong_words_are_named_as_they_were_typed() -> None:
    found = findings(
        MINIMAL, "training.epoch=3", "optimizer.lr=fast", "model.name.first=x", "nonsense", "fields.inputs=[a"
    )
    assert sorted(line.splitlines()[0] for line in found) == [
        "command line: fields.inputs=[a: error: fields.inputs: '[a' cannot be read: "
        "bad YAML: a list or mapping in brackets is not closed",
        "command line: model.name.first=x: error: name is no block, so it has no first",
        "command line: nonsense: error: 'nonsense' is no key=value",
        "command line: optimizer.lr=fast: error: optimizer.lr: 'fast' is not a number",
        "command line: training.epoch=3: error: unknown key 'epoch' in training",
    ]


def test_values_that_contradict_each_other_are_found() -> None:
    text = MINIMAL + "training: {epochs: 1, steps: 5, batch_size: 10, accumulate: 4}\n"
    found = findings(text)
    assert "c.yaml:3:30: error: training has both epochs and steps\n    keep one of them" in found
    assert any("batch_size 10 cannot be divided evenly" in line for line in found)


def test_what_is_written_is_read_back_the_same() -> None:
    config = parse_config(MINIMAL, "c.yaml", ["normalise.image=log", "optimizer.lr=1e-5"]).config
    again = parse_config(yaml_text(config.to_json()), "config.yaml").config
    assert again.to_json() == config.to_json() and again.digest == config.digest


def test_the_digest_ignores_what_a_resumed_run_may_change() -> None:
    first = parse_config(MINIMAL, "c.yaml").config
    assert (
        parse_config(MINIMAL, "c.yaml", ["training.epochs=99", "output=elsewhere"]).config.digest
        == first.digest
    )
    assert parse_config(MINIMAL, "c.yaml", ["optimizer.lr=0.5"]).config.digest != first.digest


def test_the_schema_for_editors_accepts_what_is_accepted() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    full = parse_config(MINIMAL, "c.yaml", ["training.steps=5", "tournament.metrics=[{name: loss}]"]).config
    validator.validate(json.loads(json.dumps(full.to_json())))
    validator.validate({"data": "d", "model": {"name": "m", "own": [1]}, "training": None})
    for wrong in ({"data": "d"}, {"data": "d", "model": {"name": "m"}, "trainning": {}}):
        assert list(validator.iter_errors(wrong))


def test_every_key_has_a_description() -> None:
    def blocks(model):
        yield model
        for field in model.model_fields.values():
            for kind in [field.annotation, *getattr(field.annotation, "__args__", ())]:
                if isinstance(kind, type) and hasattr(kind, "model_fields"):
                    yield from blocks(kind)

    fields = [(block, name, f) for block in blocks(TrainConfig) for name, f in block.model_fields.items()]
    assert [f"{block.__name__}.{name}" for block, name, f in fields if not f.description] == []


def test_by_default_everything_numeric_is_used(data) -> None:
    facts = checked(data, "model: {name: regressor}\n").facts
    assert facts.inputs == ("a", "b", "c", "d") and facts.scalars == ("energy", "radius", "time")
    assert facts.images == {"image": (2, 8, 8)}


def test_names_that_the_data_has_not_are_listed_with_what_there_is(data) -> None:
    text = (
        "model: {name: regressor}\nfields:\n  inputs: [a, e]\n  scalars: [enrgy, image]\n  images: [picture]\n"
        "normalise: {radios: log}\nsplits: {validation: valid}\n"
    )
    found = refused(data, text).splitlines()
    assert any(
        line.startswith("c.yaml:4:15: error: fields.inputs:") and line.endswith("has no 'e'")
        for line in found
    )
    assert "fields.scalars: 'image' is of kind image, which fields.scalars does not take" in "\n".join(found)
    assert "    did you mean 'energy'? there are: energy, radius, time" in found
    assert any(line.startswith("c.yaml:6:12: error: fields.images:") for line in found)
    assert any(line.startswith("c.yaml:7:13: error: normalise: 'radios' is neither") for line in found)
    assert any("has no split 'valid'" in line for line in found)
    assert "    did you mean 'validation'? there are: test, train, validation" in found


def test_values_that_are_no_numbers_are_found_by_field_and_sample(tmp_path) -> None:
    time = arrays(300)["time"]
    time[[17, 30]] = [np.nan, np.inf]
    data = make_surrogate_data(tmp_path, 300, time=time)
    text = "model: {name: regressor}\n"
    found = refused(data, text, "training.batch_size=16")
    assert (
        "'time' is NaN or infinite in " in found
        and "17" in found
        and "leave it out of fields.scalars" in found
    )
    assert checked(data, text, "training.batch_size=16", "fields.scalars=[energy]").facts.scalars == (
        "energy",
    )


def test_constant_columns_are_left_out_unless_they_are_asked_for(tmp_path) -> None:
    data = make_surrogate_data(tmp_path, 300, d=np.full(300, 2.0))
    text = "model: {name: regressor}\ntraining: {batch_size: 16}\n"
    found = checked(data, text)
    assert found.facts.inputs == ("a", "b", "c")
    assert [warning.message for warning in found.warnings] == [
        "'d' is left out: it is the same in all samples"
    ]
    assert "'d' is the same in all samples" in refused(data, text, "fields.inputs=[a, d]")


def test_an_image_with_a_constant_channel_is_used_as_it_is(tmp_path) -> None:
    image = arrays(300)["image"]
    image[..., 1] = 0.0
    data = make_surrogate_data(tmp_path, 300, image=image)
    text = "model: {name: regressor}\ntraining: {batch_size: 16}\n"
    left = checked(data, text)
    (warning,) = left.warnings
    assert left.facts.images == {} and warning.message.startswith("'image' is left out: it is constant in ch")
    assert warning.message.endswith("channel 1; normalise: {image: none} keeps it")
    found = refused(data, text, "fields.images=[image]")
    assert "'image' is constant in channel 1" in found and "normalise: {image: none}" in found
    for word in ("normalise.image=none", "normalise.images=none"):
        assert checked(data, text, word, "fields.images=[image]").facts.images == {"image": (2, 8, 8)}
        assert checked(data, text, word).facts.images == {"image": (2, 8, 8)}


@pytest.mark.parametrize("size", [1e160, 1e-170])
def test_values_whose_squares_float64_cannot_hold_are_used_by_their_logarithm(tmp_path, size) -> None:
    data = make_surrogate_data(tmp_path, 300, time=size * arrays(300)["time"])
    text = "model: {name: regressor}\ntraining: {batch_size: 16}\nfields: {images: []}\n"
    left = checked(data, text)
    assert left.facts.scalars == ("energy", "radius") and "time: log} keeps it" in left.warnings[0].message
    for method in ("standard", "none"):
        found = refused(data, text, "fields.scalars=[time]", f"normalise.time={method}")
        assert "squares float64 cannot hold\n    leave it out, or write normalise: {time: log}" in found
        assert "neither a group nor a selected field" not in found
    assert "time" in checked(data, text, "normalise.time=log").facts.scalars


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.name=regresor"], "did you mean 'regressor'?"),
        (["model.name=nowhere:build"], "there is no module 'nowhere'"),
        (["model.name=tiny_models:Nothing"], "tiny_models has no 'Nothing'"),
        (["model.widht=3"], "did you mean 'width'?"),
        (["model.width=wide"], "'wide' is not a whole number"),
        (["model.name=tiny_models:Noisy", "model.depth=3"], "unknown option 'depth' of the model tiny_models:Noisy"),
        (["training.early_stopping.metric=los"], "the model has no metric 'los'"),
        (["tournament.metrics=[{name: yield}]"], "tournament.metrics.0.name: the model has no metric 'yield'"),
        (["tournament.exchange=[generators]"], "the model has no part 'generators'"),
        (["optimizer.phases.generator.lr=1"], "the model has no phase 'generator'"),
        (["training.device=cuda:31"], "torch finds no GPU"),
        (["training.precision=fp16", "training.device=cpu"], "fp16 needs a GPU"),
        (["training.batch_size=5000"], "less than one batch of 5000"),
        (["normalise={energy: {name: minmax, range: [1, 1]}}"], "normalise: normalisation {'name': 'minmax'"),
        (["tournament.trainers=32", "tournament.strategy=none"], "lower training.batch_size or tournament.trainers"),
        (["fields.scalars=[]", "fields.images=[]"], "nothing to learn is selected"),
    ],
)  # fmt: skip
def test_what_does_not_fit_data_and_model_is_refused(data, words, message) -> None:
    assert message in refused(data, "model: {name: regressor}\n", *words)


def test_a_model_that_fails_on_a_batch_is_found_before_the_run(data, tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_model.py").write_text(
        "from merlin.train.models.base import Trainee\n"
        "import torch\n"
        "class Broken(Trainee):\n"
        "    def __init__(self, shapes):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(99, 1)\n"
        "    def forward(self, batch, phase='model'):\n"
        "        return {'loss': self.layer(batch['inputs']).mean()}\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match="fails on a batch of this data: RuntimeError"):
        checked(data, "model: {name: 'broken_model:Broken'}\n")


MISTAKES = [
    ("column", "predicts 'scalars' of shape (4, 1) for 4 samples; expected a tensor of shape (4, 3)"),
    ("mean", "predicts 'scalars' of shape (1, 3) for 4 samples"),
    ("swapped", "predicts 'scalars' of shape (3, 4) for 4 samples"),
    ("key", "predicts only 'scalar'; expected 'scalars'"),
    ("tensor", "predicts a Tensor; expected a dict with scalars"),
    ("array", "predicts 'scalars' as ndarray"),
    ("raises", "fails on a batch of this data: IndexError"),
]


@pytest.mark.parametrize(("how", "message"), MISTAKES)
def test_a_mistake_in_predict_is_found_before_the_run(data, how, message) -> None:
    text = f"model: {{name: 'tiny_models:Wrong', how: {how}}}\nfields: {{images: []}}\n"
    assert f"the model tiny_models:Wrong {message}" in refused(data, text)


def test_as_many_samples_as_scalars_are_not_taken_for_them(tmp_path) -> None:
    made = arrays(200)
    more = dict.fromkeys(("energy", "radius", "time", "more"), made["radius"])
    schema = "inputs: [a]\nfields:\n" + "".join(f"  {name}: {{kind: scalar}}\n" for name in more)
    data = import_arrays(tmp_path, schema, {"a": made["a"], **more})
    text = "model: {name: 'tiny_models:Wrong', how: swapped}\ntraining: {batch_size: 16}\n"
    assert "of shape (4, 5) for 5 samples; expected a tensor of shape (5, 4)" in refused(data, text)


def test_a_missing_or_damaged_data_set_is_told(data, tmp_path) -> None:
    with pytest.raises(NotADataSetError, match="there is no"):
        checked(tmp_path / "nowhere", "model: {name: regressor}\n")
    with pytest.raises(NotADataSetError, match="no finished data set"):
        checked(tmp_path, "model: {name: regressor}\n")
    damaged = make_surrogate_data(tmp_path / "damaged", 600)
    shard = damaged / "shard_00001.h5"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ShardError, match=r"shard_00001.h5 has .* bytes, and had .*verify"):
        checked(damaged, "model: {name: regressor}\n")
    shard.unlink()
    with pytest.raises(ShardError, match=r"shard_00001.h5 is missing"):
        checked(damaged, "model: {name: regressor}\n")


def test_an_input_and_a_field_of_one_name_are_both_normalised(tmp_path) -> None:
    values = {name: np.arange(400.0) + i for i, name in enumerate(("x", "w", "y"))}
    np.savez(tmp_path / "samples.npz", **values)
    schema = parse_import_schema("inputs: [x, w]\nfields: {x: , y: }\n", Findings("schema"))
    import_data([tmp_path / "samples.npz"], schema, tmp_path / "data")
    words = ("fields={inputs: [x, w]}", "normalise={inputs: minmax, y: minmax}")
    scalings = checked(tmp_path / "data", "model: {name: regressor}\n", *words).normaliser.scalings
    assert {path: of.centre[0] for path, of in scalings.items()} == pytest.approx(
        {"inputs/x": 0, "inputs/w": 1, "fields/x": 199.5, "fields/y": 2}
    )


@pytest.mark.parametrize("words", [["output=~/runs"], ["directory=~/runs/a"]])
def test_a_run_may_lie_in_the_home_directory(data, tmp_path, monkeypatch, words) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = checked(data, "model: {name: regressor, width: 8}\n", *words).begin()
    assert run.path.parent == tmp_path / "home" / "runs" and not list(Path().iterdir())


def test_a_directory_holds_one_run(data, tmp_path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"data: {data}\ndirectory: {tmp_path / 'run'}\nmodel: {{name: regressor, width: 8}}\n")
    run = prepare(path).begin()
    assert prepare(path, ["training.epochs=3"]).run is not None
    assert prepare(run.path).run is not None
    assert load_config(run.config_path).config.fields.scalars == ("energy", "radius", "time")
    with pytest.raises(UsageError, match=r"model\.width was 8 and is 16"):
        prepare(path, ["model.width=16"])
    with pytest.raises(UsageError, match="is no training run"):
        prepare(tmp_path)


def test_a_tournament_may_be_made_longer_though_a_default_follows_from_its_length(data, tmp_path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        f"data: {data}\ndirectory: {tmp_path / 'run'}\nmodel: {{name: regressor, width: 8}}\n"
        "training: {batch_size: 8, epochs: 10}\ntournament: {trainers: 2, strategy: averaging}\n"
    )
    prepare(path).begin()
    for epochs in (20, 30):
        longer = prepare(path, [f"training.epochs={epochs}"])
        assert longer.run is not None and longer.config.training.epochs == epochs
        longer.begin()
    anew = prepare(path, ["training.epochs=30", f"directory={tmp_path / 'other'}"])
    assert anew.config.optimizer.betas > longer.config.optimizer.betas
    with pytest.raises(UsageError, match=r"optimizer\.betas was .* and is \(?\[?0\.5"):
        prepare(path, ["optimizer.betas=[0.5, 0.9]"])


def test_as_many_threads_run_as_the_cgroup_leaves_cores(data, monkeypatch) -> None:
    monkeypatch.setattr("merlin.batch.cores.cgroup_cores", lambda: 1.0)
    assert checked(data, "model: {name: regressor, width: 8}").facts.threads == 1


def test_nothing_is_written_before_everything_is_right(data, tmp_path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"data: {data}\noutput: {tmp_path / 'runs'}\nmodel: {{name: regressor, widht: 8}}\n")
    with pytest.raises(ConfigError):
        prepare(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.yaml"]
