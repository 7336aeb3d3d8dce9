"""The ensemble of a run: what its spread says of the errors, before and after scaling, and how it is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from digit_data import make_digit_data
from msgspec.structs import replace
from scipy import stats
from surrogate_data import arrays, make_surrogate_data
from train_run import YAML, last_checkpoint, prepare_run, train_run

import merlin
from merlin.cli.main import main
from merlin.errors import UsageError
from merlin.shards.ensemble import open_shards
from merlin.train.checkpoint import Checkpoints, read_best
from merlin.train.config_file import parse_config
from merlin.train.prepare import check
from merlin.train.quantities import Quantity
from merlin.train.results.best import load_best
from merlin.train.results.evaluate import Evaluation, evaluate
from merlin.train.results.intervals import LEVELS, fitted_scale, held_shares, reach
from merlin.train.results.members import NoEnsembleError, load_members
from merlin.train.results.scales import Ratios
from merlin.train.results.surrogate import UncertainSurrogate, load_surrogate
from merlin.train.run_directory import RunDirectory

CPU = torch.device("cpu")
SCALARS = ("energy", "radius", "time")
MIXED = "normalise={energy: log, time: minmax, image: {name: log, offset: 0.001}}"
WORDS = (
    "fields.images=[image]", "model={name: regressor, width: 16}", "training.steps=30", MIXED,
    "loader.partition=equal",
)  # fmt: skip


def trained(data: Path, directory: Path, trainers: int, *words: str) -> RunDirectory:
    torch.set_num_threads(1)
    independent = f"tournament={{trainers: {trainers}, strategy: none}}"
    prepared = prepare_run(data, directory, *WORDS, independent, *words)
    run = prepared.begin()
    for trainer in range(trainers):
        train_run(prepared, run=run, trainer=trainer)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("trained")
    return trained(make_surrogate_data(folder / "d", 600), folder / "run", 3)


@pytest.fixture(scope="module")
def evaluation(run: RunDirectory) -> Evaluation:
    return evaluate(run.path, device="cpu")


@pytest.fixture(scope="module")
def surrogate(run: RunDirectory) -> UncertainSurrogate:
    found = load_surrogate(run.path, device="cpu", uncertainty=True)
    assert isinstance(found, UncertainSurrogate)
    return found


@pytest.fixture
def copy(run: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of the run, not evaluated so far, which may be changed."""
    ignored = shutil.ignore_patterns("evaluation.json", "plots", "report.html")
    shutil.copytree(run.path, tmp_path / "copy", ignore=ignored)
    return RunDirectory(tmp_path / "copy")


def inputs(num: int) -> np.ndarray:
    x = arrays(num, seed=1)
    return 0.98 * np.stack([x[name] for name in "abcd"], axis=1)


# intervals


@pytest.mark.parametrize("members", [2, 3, 4, 16])
def test_intervals_are_as_wide_as_those_of_students_distribution(members: int) -> None:
    for level in (0.01, *LEVELS, 0.999):
        assert reach(level, members) == pytest.approx(stats.t.ppf((1 + level) / 2, members - 1), rel=1e-6)
    for level in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="between 0 and 1"):
            reach(level, members)


@pytest.mark.parametrize("members", [2, 3, 8])
def test_the_factor_is_exact_where_it_is_known(members: int) -> None:
    assert fitted_scale(np.full(7, 2.5), members) == pytest.approx(2.5, rel=1e-12)
    quantiles = stats.t.ppf(0.5 + (np.arange(4000) + 0.5) / 8000, members - 1)
    assert fitted_scale(1.7 * quantiles, members) == pytest.approx(1.7, rel=2e-3)
    some = np.abs(np.random.default_rng(0).normal(size=50))
    assert fitted_scale(1e9 * some, members) == pytest.approx(1e9 * fitted_scale(some, members), rel=1e-9)


def test_the_factor_is_the_one_that_is_most_likely() -> None:
    errors, members = 3 * np.abs(np.random.default_rng(1).standard_t(3, size=200)), 4
    found = fitted_scale(errors, members)
    likely = {
        factor: stats.t.logpdf(errors / factor, members - 1).sum() - 200 * np.log(factor)
        for factor in (0.98 * found, found, 1.02 * found)
    }
    assert max(likely, key=lambda factor: likely[factor]) == found


def test_wild_values_do_not_decide_and_nothing_to_fit_is_no_error() -> None:
    usual = np.abs(np.random.default_rng(2).normal(size=200))
    wild = np.concatenate([usual, [1e30, np.inf, 0.0]])
    assert fitted_scale(wild, 4) == pytest.approx(fitted_scale(usual, 4), rel=0.05)
    assert fitted_scale(np.zeros(3), 4) == fitted_scale(np.zeros(0), 4) == 1.0
    assert np.isfinite(fitted_scale(np.array([1.0, np.inf, np.inf, np.inf]), 4))
    assert np.isnan(held_shares(np.zeros(0), 1.0, (0.5, 0.9), 4)).all()


@pytest.mark.parametrize("members", [2, 3, 5])
def test_intervals_of_a_gaussian_ensemble_hold_what_they_should_after_scaling(members: int) -> None:
    """Errors are 2.5 times as large as the spread, which differs from sample to sample."""
    random, num = np.random.default_rng(3), 20_000
    spread = np.exp(random.normal(size=num))
    made = spread * random.normal(size=(members, num))
    error = np.abs(2.5 * spread * random.normal(size=num))
    ratios = error / made.std(axis=0, ddof=1)
    scale = fitted_scale(ratios[::2], members)
    assert scale == pytest.approx(2.5, rel=0.06)
    raw, scaled = (held_shares(ratios[1::2], factor, LEVELS, members) for factor in (1.0, scale))
    np.testing.assert_allclose(scaled, LEVELS, atol=0.02)
    assert all(a < b for a, b in zip(raw, scaled, strict=True)) and raw[LEVELS.index(0.5)] < 0.35


def test_dark_pixels_in_which_all_agree_do_not_count() -> None:
    quantity = Quantity("image", "fields/image", shape=(2, 3))
    mean, std, true = (np.zeros((1, 1, 2, 3)) for _ in range(3))
    mean[..., 0], std[..., 0], true[..., 0] = 5.0, 0.5, 6.0
    true[0, 0, 0, 1] = 1e-9  # rounding
    true[0, 0, 1, 1] = 0.1  # certain and wrong
    ratios = Ratios(1)
    ratios.add(quantity, mean, std, true)
    assert sorted(ratios.of("image")) == pytest.approx([2, 2, 0.1 / 5e-6])
    ratios.add(quantity, mean * np.nan, std, true)
    assert np.isinf(ratios.of("image")[3:]).all()
    many = Ratios(1 << 20)
    for _ in range(2):
        many.add(quantity, mean + 1, std + 1, true)
    assert len(many.of("image")) == 2, "one pixel of each sample"


# what the ensemble predicts


def test_it_predicts_the_mean_and_the_scaled_spread_of_its_members_in_physical_units(
    run: RunDirectory, surrogate: UncertainSurrogate
) -> None:
    best, x = load_best(run.path), inputs(9)
    members = load_members(best, run.path, CPU)
    assert [member.trainer for member in members.models] == [0, 1, 2] and not members.notes
    with torch.no_grad():
        made = [member.model(torch.from_numpy(x)) for member in members.models]
    found = surrogate.predict(x, batch_size=4)
    assert list(found) == [f"{name}{suffix}" for name in (*SCALARS, "image") for suffix in ("", "_std")]
    for name in (*SCALARS, "image"):
        each = np.stack([values[name].numpy() for values in made]).astype(np.float64)
        np.testing.assert_allclose(found[name], each.mean(axis=0), rtol=1e-5, atol=1e-6)
        scaled = surrogate.scales.by_field[name] * each.std(axis=0, ddof=1)
        np.testing.assert_allclose(found[f"{name}_std"], scaled, rtol=1e-3, atol=1e-6)
        assert found[f"{name}_std"].shape == found[name].shape
        assert found[f"{name}_std"].dtype == found[name].dtype
    assert (found["energy_std"] > 1e3).any(), "in the units of the energy"
    assert surrogate.reach(0.9) == pytest.approx(stats.t.ppf(0.95, 2), rel=1e-6)


def test_the_published_model_is_one_of_the_members(run: RunDirectory) -> None:
    best, x = load_best(run.path), inputs(3)
    members = {member.trainer: member for member in load_members(best, run.path, CPU).models}
    chosen = members[best.facts["trainer"]]
    assert (chosen.step, chosen.value) == (best.facts["step"], best.facts["value"])
    with torch.no_grad():
        made = chosen.model(torch.from_numpy(x))
    for name, values in load_surrogate(run.path, device="cpu").predict(x).items():
        np.testing.assert_array_equal(made[name].numpy(), values)


def test_fields_are_chosen_with_their_standard_deviations(surrogate: UncertainSurrogate) -> None:
    assert list(surrogate.predict(inputs(2), fields=["time"])) == ["time", "time_std"]
    assert list(surrogate.predict(inputs(2), fields=["radius_std", "radius"])) == ["radius_std", "radius"]
    assert surrogate.images == {"image": (8, 8, 2), "image_std": (8, 8, 2)}
    with pytest.raises(UsageError, match="predicts no 'mass'"):
        surrogate.predict(inputs(2), fields=["mass"])


def test_factors_come_from_the_evaluation_or_are_fitted_to_the_validation_split(
    copy: RunDirectory, evaluation: Evaluation, surrogate: UncertainSurrogate
) -> None:
    told = {name: of["scale"] for name, of in evaluation.facts["uncertainty"]["fields"].items()}
    assert surrogate.scales.by_field == pytest.approx(told, rel=1e-12)
    assert surrogate.scales.split == "validation"
    path, facts = copy.path / "evaluation.json", json.loads(json.dumps(evaluation.facts))
    facts["uncertainty"]["fields"]["energy"]["scale"] = 12.0
    path.write_text(json.dumps(facts))
    assert load_surrogate(copy.path, device="cpu", uncertainty=True).scales.by_field["energy"] == 12.0
    facts["uncertainty"]["members"][0]["step"] += 1  # it is of other models, so that it says nothing of these
    path.write_text(json.dumps(facts))
    again = load_surrogate(copy.path, device="cpu", uncertainty=True)
    assert again.scales.by_field == surrogate.scales.by_field
    for odd in (5, {"members": 3}, {**facts["uncertainty"], "fields": {"energy": {}}}):
        path.write_text(json.dumps({**facts, "uncertainty": odd}))
        again = load_surrogate(copy.path, device="cpu", uncertainty=True)
        assert again.scales.by_field == surrogate.scales.by_field


def test_a_field_that_is_called_as_a_standard_deviation_is_refused(
    run: RunDirectory, surrogate: UncertainSurrogate
) -> None:
    best = load_best(run.path)
    energy, radius, time = best.quantities.scalars
    named = (energy, replace(radius, name="energy_std"), time)
    renamed = replace(best, quantities=replace(best.quantities, scalars=named))
    with pytest.raises(UsageError, match="predicts 'energy_std' itself"):
        UncertainSurrogate(renamed, CPU, surrogate.members, surrogate.scales)


# evaluations


def test_an_evaluation_says_how_well_the_intervals_hold(run: RunDirectory, evaluation: Evaluation) -> None:
    facts = evaluation.facts["uncertainty"]
    ens = open_shards(run.facts().data_path)
    sizes = {name: len(rows) for name, rows in ens.splits.items()}
    assert (facts["split"], facts["num_samples"]) == ("test", sizes["test"])
    assert facts["fitted_on"] == {"split": "validation", "num_samples": sizes["validation"]}
    assert [member["trainer"] for member in facts["members"]] == [0, 1, 2]
    assert facts["levels"] == list(LEVELS) and facts["reach"] == [reach(level, 3) for level in LEVELS]
    assert set(facts["fields"]) == {*SCALARS, "image"}
    surrogate = load_surrogate(run.path, device="cpu", uncertainty=True)
    rows = ens.splits["test"]
    found = surrogate.predict({name: ens.inputs[name][rows] for name in surrogate.inputs})
    for name in SCALARS:
        of, error = facts["fields"][name], np.abs(found[name] - ens[name][rows])
        assert of["error"]["best"] == evaluation.facts["scalars"][name]["rmse"]
        assert of["error"]["mean"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
        for factor, shares in ((of["scale"], of["coverage"]["raw"]), (1.0, of["coverage"]["scaled"])):
            held = [(factor * error <= reach(level, 3) * found[f"{name}_std"]).mean() for level in LEVELS]
            np.testing.assert_allclose(shares, held, atol=1e-12)
        assert of["calibration_error"]["scaled"] == pytest.approx(np.abs(np.subtract(shares, LEVELS)).mean())
    image = facts["fields"]["image"]
    assert image["error"]["measure"] == "relative_l2"
    assert image["error"]["best"] == evaluation.facts["images"]["image"]["relative_l2"]
    # the intervals are those of one factor, and too narrow without it
    assert image["scale"] > 1 and image["calibration_error"]["scaled"] < image["calibration_error"]["raw"]


def test_progress_is_that_of_all_passes_together(run: RunDirectory) -> None:
    told: list[tuple[int, int]] = []
    evaluate(run.path, device="cpu", progress=lambda done, total: told.append((done, total)))
    sizes = {name: len(rows) for name, rows in open_shards(run.facts().data_path).splits.items()}
    total = 2 * sizes["test"] + sizes["validation"]
    assert told == sorted(told) and told[-1] == (total, total) == (told[-1][0], told[0][1])


def test_on_the_validation_split_factors_are_fitted_to_what_is_evaluated(
    run: RunDirectory, evaluation: Evaluation
) -> None:
    facts = evaluate(run.path, split="validation", device="cpu").facts["uncertainty"]
    before = evaluation.facts["uncertainty"]
    assert facts["split"] == facts["fitted_on"]["split"] == "validation"
    for name, of in facts["fields"].items():
        assert of["scale"] == pytest.approx(before["fields"][name]["scale"], rel=1e-12)


def test_on_other_data_the_factors_are_those_of_the_run(
    copy: RunDirectory, evaluation: Evaluation, tmp_path: Path
) -> None:
    other = make_surrogate_data(tmp_path / "other", 60)
    facts = evaluate(copy.path, data=other, split="all", device="cpu").facts
    assert facts["uncertainty"]["num_samples"] == 60
    scales = {name: of["scale"] for name, of in facts["uncertainty"]["fields"].items()}
    before = evaluation.facts["uncertainty"]["fields"]
    assert scales == pytest.approx({name: before[name]["scale"] for name in scales}, rel=1e-12)
    text = copy.config_path.read_text()
    copy.config_path.write_text(text.replace(copy.facts().data_path, str(tmp_path / "gone")))
    facts = evaluate(copy.path, data=other, split="all", device="cpu").facts
    assert facts["uncertainty"] is None and any("No uncertainty: the data set" in n for n in facts["notes"])


# commands


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as end:
        main(list(map(str, argv)))
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


def test_evaluate_and_predict_tell_it_and_the_report_shows_the_calibration(
    copy: RunDirectory, evaluation: Evaluation, tmp_path: Path, capsys
) -> None:
    code, out, err = call(capsys, "evaluate", copy.path)
    assert code == 0 and "ensemble of 3 trainers" in out and "→" in out and "No uncertainty" not in out, err
    facts = json.loads((copy.path / "evaluation.json").read_text())
    assert facts["uncertainty"]["sentence"] == evaluation.facts["uncertainty"]["sentence"]
    page = (copy.path / "report.html").read_text()
    for found in (
        "Calibration of the uncertainty",
        "Ensemble of 3 trainers",
        "spread of 3 trainers",
        "in 95 %",
    ):
        assert found in page
    assert (copy.path / "plots" / "calibration.png").is_file()
    scales = {name: of["scale"] for name, of in facts["uncertainty"]["fields"].items()}

    np.savetxt(tmp_path / "s.csv", inputs(5), delimiter=",", header="a,b,c,d", comments="")
    words = ("predict", copy.path, tmp_path / "s.csv", "--uncertainty")
    code, out, err = call(capsys, *words, "-o", tmp_path / "p.parquet")
    assert code == 0 and "means of 3 models" in out, err
    table = pq.read_table(tmp_path / "p.parquet")
    assert {"energy", "energy_std", "image", "image_std"} <= set(table.column_names)
    expected = load_surrogate(copy.path, device="cpu", uncertainty=True).predict(inputs(5))
    np.testing.assert_allclose(table["energy_std"].to_numpy(), expected["energy_std"], rtol=1e-6)

    code, out, err = call(capsys, *words, "-o", tmp_path / "p.csv", "--json")
    told = json.loads(out)
    assert "image, image_std" in err and told["fields"][:2] == ["energy", "energy_std"]
    assert told["uncertainty"]["scales"] == pytest.approx(scales, rel=1e-9)
    assert len(told["uncertainty"]["members"]) == 3 and told["uncertainty"]["levels"] == [0.5, 0.8, 0.9, 0.95]


def test_one_model_has_no_uncertainty_and_the_message_says_what_to_do(
    copy: RunDirectory, tmp_path: Path, capsys
) -> None:
    np.savetxt(tmp_path / "s.csv", inputs(2), delimiter=",", header="a,b,c,d", comments="")
    words = (tmp_path / "s.csv", "--uncertainty", "-o", tmp_path / "p.csv")
    code, _, err = call(capsys, "predict", copy.best, *words)
    assert code == 2 and "give the run directory" in err
    for trainer in (1, 2):
        shutil.rmtree(copy.trainer(trainer).path)
    code, _, err = call(capsys, "predict", copy.path, *words)
    assert code == 2 and "only one trainer" in err and "tournament: {trainers: 4, strategy: none}" in err
    assert not (tmp_path / "p.csv").exists()
    facts = evaluate(copy.path, device="cpu").facts
    assert facts["uncertainty"] is None and not facts["notes"]
    code, out, _ = call(capsys, "predict", copy.path, tmp_path / "s.csv", "-o", tmp_path / "p.csv", "--json")
    assert code == 0 and json.loads(out)["uncertainty"] is None


# runs without an ensemble, and with a part of one


def alike(run: RunDirectory, *trainers: int) -> None:
    """Give some trainers the best model of the first one."""
    for trainer in trainers:
        shutil.rmtree(run.trainer(trainer).path)
        shutil.copytree(run.trainer(0).path, run.trainer(trainer).path)


def test_trainers_with_the_same_model_are_one_member(copy: RunDirectory) -> None:
    alike(copy, 2)
    facts = evaluate(copy.path, device="cpu").facts
    assert [member["trainer"] for member in facts["uncertainty"]["members"]] == [0, 1]
    assert facts["uncertainty"]["notes"] == ["trainer 2 has the same model as trainer 0"]
    alike(copy, 1)
    facts = evaluate(copy.path, device="cpu").facts
    assert facts["uncertainty"] is None
    (note,) = facts["notes"]
    assert "No uncertainty" in note and "are all the same" in note and "strategy: none" in note
    with pytest.raises(NoEnsembleError, match="are all the same"):
        merlin.load_surrogate(copy.path, device="cpu", uncertainty=True)


def test_averaging_makes_one_model_of_all(copy: RunDirectory) -> None:
    text = copy.config_path.read_text()
    copy.config_path.write_text(text.replace("strategy: none", "strategy: averaging"))
    facts = evaluate(copy.path, device="cpu").facts
    assert facts["uncertainty"] is None and any(
        "averaging makes the models" in note for note in facts["notes"]
    )


def test_models_that_cannot_be_read_are_left_out_and_named(copy: RunDirectory) -> None:
    state = next(copy.trainer(1).checkpoints.glob("best.*")) / "state.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 0xFF
    state.unlink()
    state.write_bytes(content)
    shutil.rmtree(next(copy.trainer(2).checkpoints.glob("best.*")))
    best = load_best(copy.path)
    with pytest.raises(
        NoEnsembleError, match=r"no two models yet; the model of trainer 1 was left out: .* damaged"
    ):
        load_members(best, copy.path, CPU)
    shutil.copytree(last_checkpoint(copy.trainer(2).checkpoints), copy.trainer(2).checkpoints / "best.9")
    members = load_members(best, copy.path, CPU)
    assert [member.trainer for member in members.models] == [0, 2] and len(members.notes) == 1


def test_a_run_that_validates_on_what_it_learns_cannot_be_scaled(copy: RunDirectory) -> None:
    text = copy.config_path.read_text()
    copy.config_path.write_text(text.replace("validation: validation", "validation: train"))
    with pytest.raises(NoEnsembleError, match=r"trains on, 'train'; name another one as splits\.validation"):
        load_surrogate(copy.path, device="cpu", uncertainty=True)
    facts = evaluate(copy.path, device="cpu").facts
    assert facts["uncertainty"] is None and "No uncertainty: uncertainty is scaled on" in facts["notes"][0]


def test_classes_and_reconstructions_have_no_uncertainty(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    words = (
        "model={name: classifier, width: 8, depth: 1}", "fields={inputs: [image], classes: [label]}",
        "training.steps=2",
    )  # fmt: skip
    text = YAML.format(data=make_digit_data(tmp_path / "digits", 400), directory=tmp_path / "run")
    run = train_run(check(parse_config(text, "train.yaml", words)))[0]
    with pytest.raises(UsageError, match="predicts classes"):
        load_surrogate(run.path, device="cpu", uncertainty=True)
    shutil.copytree(run.trainer(0).path, run.trainer(1).path)
    facts = evaluate(run.path, device="cpu").facts
    assert facts["uncertainty"] is None and any("predicts classes" in note for note in facts["notes"])

    words = (*WORDS, "model={name: icf_autoencoder, latent: 4, capacity: 0.2}", "training.steps=2")
    run = train_run(prepare_run(make_surrogate_data(tmp_path / "d", 400), tmp_path / "coder", *words))[0]
    shutil.copytree(run.trainer(0).path, run.trainer(1).path)
    facts = evaluate(run.path, device="cpu").facts
    assert facts["uncertainty"] is None and any("reconstructs" in note for note in facts["notes"])


def test_members_may_have_different_widths_and_be_models_of_a_users_own(tmp_path: Path) -> None:
    data, model = make_surrogate_data(tmp_path / "d", 600), "model={name: 'tiny_models:Elastic'}"
    words = ("fields.images=[]", "normalise={energy: log}", model, "training.ema=0.5")
    run = trained(data, tmp_path / "run", 2, *words)
    wide = trained(data, tmp_path / "wide", 1, *words, "model.capacity=2.5")
    shutil.rmtree(run.trainer(1).path)
    state = read_best(wide.trainer(0).checkpoints)  # as a trainer has it whose width was mutated
    assert state is not None
    state["trainer"]["capacity"] = 2.5
    checkpoints = Checkpoints(run.trainer(1).checkpoints, keep=1)
    assert checkpoints.save(
        {key: state[key] for key in ("code", "trainer", "progress", "judge")}, 30, best=True
    )

    with pytest.raises(UsageError, match="--trust-code"):
        load_surrogate(run.path, device="cpu", uncertainty=True)
    members = load_members(load_best(run.path, trust_code=True), run.path, CPU).models
    widths = [len(member.model.trainee.state_dict()["body.0.bias"]) for member in members]
    assert widths == [16, 40]
    found = load_surrogate(run.path, device="cpu", trust_code=True, uncertainty=True).predict(inputs(3))
    own = load_surrogate(wide.path, device="cpu", trust_code=True).predict(inputs(3))
    narrow = members[0].model(torch.from_numpy(inputs(3)))
    for name, values in own.items():
        mean = (narrow[name].detach().numpy() + values) / 2
        np.testing.assert_allclose(found[name], mean, rtol=1e-6)
    assert evaluate(run.path, device="cpu", trust_code=True).facts["uncertainty"] is not None
