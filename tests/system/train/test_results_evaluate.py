"""Evaluations: errors that are right, of the samples that were asked for, in a report that stands alone."""

from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from surrogate_data import SCHEMA, make_surrogate_data
from train_run import prepare_run, train_run
from trained import make_trained

from merlin.base.document.findings import Findings
from merlin.errors import NotADataSetError, ShardError, TrainingError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.importing.run import import_data
from merlin.shards.plot.figure import make_figure, picture
from merlin.spec.import_schema import parse_import_schema
from merlin.train.prepare import prepare
from merlin.train.quantities import Quantity
from merlin.train.results.evaluate import evaluate
from merlin.train.results.history import Curve, History, Round, Trained, read_history
from merlin.train.results.report.agreement import Panels
from merlin.train.results.report.lineage import Lineage
from merlin.train.results.report.page import write_report
from merlin.train.results.report.sections import make_sections
from merlin.train.results.report.tables import trainers_table
from merlin.train.results.scores import ImageScores, ScalarScores
from merlin.train.results.similarity import ssim
from merlin.train.results.surrogate import load_surrogate
from merlin.train.run_directory import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_trained(tmp_path_factory.mktemp("trained"), "normalise={energy: log, image: minmax}")


def reference_ssim(found: np.ndarray, expected: np.ndarray) -> float:
    """Equation 13 of Wang et al. (2004), with SciPy's Gaussian filter cut to 11 pixels; border pixels left out."""
    span = expected.max() - expected.min()
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2

    def mean(image: np.ndarray) -> np.ndarray:
        return gaussian_filter(image, 1.5, truncate=3.5)

    x, y = mean(found), mean(expected)
    xx, yy = mean(found * found) - x * x, mean(expected * expected) - y * y
    xy = mean(found * expected) - x * y
    values = (2 * x * y + c1) * (2 * xy + c2) / ((x * x + y * y + c1) * (xx + yy + c2))
    return float(values[5:-5, 5:-5].mean())


def test_ssim_is_that_of_the_paper_channel_by_channel() -> None:
    random = np.random.default_rng(0)
    expected = random.random((3, 2, 24, 31)) * np.array([1.0, 1e6]).reshape(1, 2, 1, 1) + 5
    found = expected + expected.std(axis=(2, 3), keepdims=True) * 0.3 * random.normal(size=expected.shape)
    values = ssim(torch.from_numpy(found), torch.from_numpy(expected)).numpy()
    for i in range(3):
        for c in range(2):
            assert values[i, c] == pytest.approx(reference_ssim(found[i, c], expected[i, c]), rel=1e-9)
    same = torch.from_numpy(expected)
    assert torch.allclose(ssim(same, same), torch.ones(3, 2, dtype=torch.float64))
    small, flat = torch.rand(2, 1, 5, 4), torch.full((2, 1, 16, 16), 3.0)
    assert torch.isfinite(ssim(small, small + 0.1)).all() and torch.allclose(
        ssim(flat, flat), torch.ones(2, 1).double()
    )


@pytest.mark.parametrize("step", [1, 7, 100])
def test_scores_of_scalars_do_not_depend_on_how_they_are_batched(step: int) -> None:
    random = np.random.default_rng(1)
    true = 1e9 + random.normal(size=100)
    predicted = true + 0.1 * random.normal(size=100)
    scores = ScalarScores()
    for lo in range(0, 100, step):
        scores.add(predicted[lo : lo + step], true[lo : lo + step])
    found, error = scores.result(), predicted - true
    assert found["r2"] == pytest.approx(1 - (error**2).sum() / ((true - true.mean()) ** 2).sum(), rel=1e-6)
    assert found["rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    assert found["relative_l2"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(true))
    assert found["max_error"] == np.abs(error).max() and found["bias"] == pytest.approx(error.mean())


def test_scores_of_images_are_those_of_the_definitions() -> None:
    random = np.random.default_rng(2)
    true = random.random((20, 2, 4, 5))
    true[3, 1] = 0  # black: it has no relative error
    predicted = true + 0.1 * random.normal(size=true.shape)
    scores = ImageScores(2)
    for part in (slice(0, 13), slice(13, 20)):
        scores.add(predicted[part], true[part], np.full((len(true[part]), 2), 0.5))
    found = scores.result(["soft", "hard"])
    error = predicted - true
    for c, channel in enumerate(found["channels"]):
        whole = np.linalg.norm(error[:, c]) / np.linalg.norm(true[:, c])
        assert channel["relative_l2"] == pytest.approx(whole)
        variance = ((true[:, c] - true[:, c].mean(axis=0)) ** 2).sum()
        assert channel["r2"] == pytest.approx(1 - (error[:, c] ** 2).sum() / variance)
        assert channel["ssim"] == pytest.approx(0.5)
    each = np.linalg.norm(error, axis=(2, 3))[:, 0] / np.linalg.norm(true, axis=(2, 3))[:, 0]
    assert found["channels"][0]["per_sample"]["median"] == pytest.approx(np.median(each), rel=1e-6)
    assert np.isfinite(found["per_sample"]["max"])


def test_errors_are_those_of_the_predictions_on_the_split(run: RunDirectory) -> None:
    told: list[tuple[int, int]] = []
    facts = evaluate(run.path, device="cpu", progress=lambda n, of: told.append((n, of))).facts
    ens = open_shards(run.facts().data_path)
    rows = ens.splits["test"]
    surrogate = load_surrogate(run.path, device="cpu")
    predicted = surrogate.predict({name: ens.inputs[name][rows] for name in surrogate.inputs})
    for name, scores in facts["scalars"].items():
        error = predicted[name] - ens[name][rows]
        assert scores["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
    image = ens["image"][rows].astype(np.float64)
    error = np.sqrt(((predicted["image"] - image) ** 2).sum((0, 1, 2)) / (image**2).sum((0, 1, 2)))
    assert facts["images"]["image"]["relative_l2"] == pytest.approx(error.mean(), rel=1e-6)
    assert facts["split"] == "test" and facts["num_samples"] == len(rows) == told[-1][0]
    assert facts["metrics"]["loss"] > 0


def test_metrics_are_those_that_training_found_on_the_same_samples(run: RunDirectory) -> None:
    facts = evaluate(run.path, split="validation", device="cpu").facts
    best = json.loads((run.best / "best.json").read_text())
    assert facts["metrics"] == pytest.approx(best["metrics"], rel=1e-4)


def test_splits_can_be_chosen_and_say_what_they_are_worth(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {name: len(rows) for name, rows in open_shards(run.facts().data_path).splits.items()}
    monkeypatch.setattr("merlin.train.results.held_out._MAX_BATCH", 128)
    for split, words in (("train", "was trained on"), ("validation", "chosen by"), ("all", "some of these")):
        facts = evaluate(run.path, split=split, device="cpu").facts
        assert facts["num_samples"] == sizes.get(split, sum(sizes.values()))
        assert any(words in note for note in facts["notes"])
    with pytest.raises(UsageError, match="no split 'tset'"):
        evaluate(run.path, split="tset", device="cpu")


def test_other_data_has_to_be_named_and_to_have_the_fields(run: RunDirectory, tmp_path: Path) -> None:
    other = make_surrogate_data(tmp_path / "other", 60)
    facts = evaluate(run.path, data=other, split="all", device="cpu").facts
    assert facts["num_samples"] == 60 and any("not the data that" in note for note in facts["notes"])
    text = run.config_path.read_text()
    moved = tmp_path / "run"
    shutil.copytree(run.path, moved)
    (moved / "config.yaml").write_text(text.replace(run.facts().data_path, str(tmp_path / "gone")))
    with pytest.raises(NotADataSetError, match=r"is gone.*--data"):
        evaluate(moved, device="cpu")
    (moved / "config.yaml").write_text(text.replace(run.facts().data_path, str(other)))
    with pytest.raises(ShardError, match="digest has changed"):
        evaluate(moved, device="cpu")


def imported(folder: Path, schema: str) -> Path:
    """The samples that `make_surrogate_data` has written into `folder`, imported in another way."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    import_data([folder / "samples.npz"], parse_import_schema(schema, Findings("schema")), folder / "data")
    return folder / "data"


def test_samples_that_are_in_other_splits_by_now_are_no_held_out_ones(tmp_path: Path) -> None:
    run = make_trained(tmp_path, steps=2)
    data = imported(tmp_path / "d", SCHEMA + "seed: 9\n")
    assert open_shards(data).manifest.content_digest == run.facts().data_digest
    for given in (None, data):
        with pytest.raises(
            ShardError, match=r"some samples of each split.*with seed 0, and are .* with seed 9"
        ):
            evaluate(run.path, data=given, device="cpu")
    with pytest.raises(UsageError, match=r"was trained on other samples of .*seed 0, and are"):
        prepare(run.path)
    facts = json.loads((run.path / "run.json").read_text())
    del facts["splits"]  # as earlier versions wrote it
    (run.path / "run.json").write_text(json.dumps(facts))
    assert prepare(run.path).run is not None and evaluate(run.path, device="cpu").facts["split"] == "test"


def test_inputs_that_are_fields_in_another_data_set_are_normalised_as_those_of_the_run(
    run: RunDirectory, tmp_path: Path
) -> None:
    plain = make_surrogate_data(tmp_path / "plain", 60)
    make_surrogate_data(tmp_path / "other", 60)
    other = imported(tmp_path / "other", SCHEMA.replace(", d]", "]").replace("fields:", "fields:\n  d:"))
    assert "d" in open_shards(other).fields
    results = [evaluate(run.path, data=path, split="all", device="cpu").facts for path in (plain, other)]
    assert results[0]["scalars"] == results[1]["scalars"] and results[0]["images"] == results[1]["images"]


def test_what_is_no_finished_run_is_explained(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no training run"):
        evaluate(tmp_path)
    shutil.copytree(run.path, tmp_path / "young", ignore=shutil.ignore_patterns("best"))
    with pytest.raises(TrainingError, match="no best model yet"):
        evaluate(tmp_path / "young")


class Page(HTMLParser):
    """What a page refers to, and the texts for readers who cannot see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.outside, self.labels, self.ids, self.links = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        assert tag not in ("script", "link", "iframe")
        if tag == "svg":
            self.labels.append(known.get("aria-label") or "")
        self.ids += [known["id"]] if tag == "section" else []
        for key in ("src", "href", "xlink:href"):
            value = known.get(key) or ""
            if tag == "a" and value:
                self.links.append(value)
            elif value and not value.startswith(("data:", "#")):
                self.outside.append(value)


def test_a_run_in_a_directory_whose_name_is_no_text_is_evaluated(run: RunDirectory, tmp_path: Path) -> None:
    odd = shutil.copytree(run.path, os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    told = json.loads(evaluate(odd, device="cpu").save().read_bytes())
    assert told["run"] == odd


def test_the_report_stands_alone_and_is_told_to_those_who_do_not_see_it(
    run: RunDirectory, tmp_path: Path
) -> None:
    page, charts = write_report(evaluate(run.path, device="cpu"), tmp_path / "report.html")
    text = page.read_text()
    found = Page(text)
    assert not found.outside and not re.search(r"url\((?!#)", text)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert len(found.labels) == len(charts) == 4 and all(len(label) > 20 for label in found.labels)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in charts)
    drawings = [ElementTree.parse(path.with_suffix(".svg")).getroot() for path in charts]
    assert all(drawing.tag == "{http://www.w3.org/2000/svg}svg" for drawing in drawings)
    told = json.loads((run.path / "evaluation.json").read_text())
    assert told["format"] == "merlin-evaluation" and set(told["scalars"]) == {"energy", "radius", "time"}
    for words in ("energy", "relative L2", "SSIM", "prefers-color-scheme: dark", "channel 1", "width: 16"):
        assert words in text
    assert "nearest neighbour" in text  # the comparison with baselines


def test_an_autoencoder_is_judged_by_its_reconstructions_and_a_surrogate_on_top_by_all_it_does(
    run: RunDirectory, tmp_path: Path
) -> None:
    data = Path(run.facts().data_path)
    usual = ("fields.images=[image]", "training.steps=8", "training.validate_every=8")
    coder, _, _ = train_run(
        prepare_run(
            data, tmp_path / "coder", "model={name: icf_autoencoder, latent: 4, capacity: 0.2}", *usual
        )
    )
    facts = evaluate(coder.path, device="cpu").facts
    assert facts["kind"] == "reconstruction" and facts["images"]["image"]["ssim"] < 1
    with pytest.raises(UsageError, match="autoencoder predicts nothing"):
        load_surrogate(coder.path)
    model = f"model={{name: icf_surrogate, capacity: 0.1, autoencoder: {coder.path}}}"
    top, _, _ = train_run(prepare_run(data, tmp_path / "top", model, *usual))
    shutil.rmtree(coder.path)
    evaluation = evaluate(top.path, device="cpu")
    assert set(evaluation.facts["inputs"]) == {"a", "b", "c", "d"}
    assert {"cycle", "inverse"} <= set(evaluation.facts["metrics"])
    assert "inputs" in make_sections(evaluation, read_history(top))


def test_histories_tell_where_models_came_from(tmp_path: Path) -> None:
    def line(kind: str, step: int, **more: object) -> str:
        return json.dumps({"kind": kind, "step": step, **more}) + "\n"

    moves = {
        0: [(1, "local"), (2, "local")],
        1: [(0, "partner"), (2, "local")],
        2: [(2, "local"), (1, "partner")],
    }
    for trainer, rounds in moves.items():
        directory = tmp_path / "trainers" / str(trainer)
        directory.mkdir(parents=True)
        text = line("train", 5, values={"loss": 1.0, "lr/model": 0.1}, time_s=1.5, samples_per_s=100.0)
        for number, (partner, kept) in enumerate(rounds, 1):
            text += line("round", 5 * number, round=number, partner=partner, kept=kept, values={})
        text += line("validation", 10, values={"loss": None if trainer == 2 else 0.5}, time_s=3.0)
        (directory / "metrics.jsonl").write_text(text + line("end", 10, values={}, state="finished") + "cut")
    history = read_history(RunDirectory(tmp_path))
    assert history.origins() == {0: [0, 0, 0], 1: [1, 0, 0], 2: [2, 2, 0]}
    assert [curve.trainer for curve in history.training["loss"]] == [0, 1, 2] and list(history.training) == [
        "loss"
    ]
    assert np.isnan(history.validation["loss"][2].values[0])
    assert history.trainers[1] == Trained(1, 10, 3.0, 100.0, "finished")
    lineage = Lineage(history, (0, 10))
    assert lineage.taken == 2 and "go back to trainer 0" in lineage.note


def test_predictions_that_are_not_finite_are_drawn_all_the_same() -> None:
    true = np.linspace(1, 2, 40)
    predicted = np.where(np.arange(40) % 7, true, np.inf)
    predicted[3] = np.nan
    scores = ScalarScores()
    scores.add(predicted, true)
    quantity = Quantity("yield", "fields/yield")
    chart = Panels.of({"yield": (true, predicted)}, {"yield": quantity})
    for section in (chart.agreement("", "", "", {"yield": scores.result()}), chart.errors("", "")):
        assert picture(make_figure([section], "", ""), "png", dpi=30)


def test_a_tournament_of_many_trainers_is_drawn(run: RunDirectory) -> None:
    num, steps = 9, np.array([10, 20])
    trainers = tuple(Trained(k, 20, 1.0, 10.0, "") for k in range(num))
    curves = tuple(Curve(k, steps, np.array([1.0, np.nan if k == 3 else 0.01])) for k in range(num))
    rounds = tuple(
        Round(n, 10 * n, k, (k + n) % num, "partner" if k % 2 else "local")
        for n in (1, 2)
        for k in range(num)
    )
    history = History(trainers, {"loss": curves}, {"loss": curves}, rounds)
    evaluation = evaluate(run.path, device="cpu")
    sections = make_sections(evaluation, history)
    for name in ("curves", "tournament"):
        assert picture(make_figure([sections[name]], "", ""), "png", dpi=30).startswith(b"\x89PNG")
    assert "model began in" in trainers_table(history, evaluation.facts["trainer"])
