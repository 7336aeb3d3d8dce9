"""Trained models are asked in physical units: in Python, and with files of samples."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from surrogate_data import arrays
from trained import make_trained

import merlin
from merlin.errors import CheckpointError, MerlinError, TrainingError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.format.regular_file import MAX_TEXT_BYTES
from merlin.train.config_file import load_config
from merlin.train.prepare import open_data
from merlin.train.results.best import load_best
from merlin.train.results.history import read_history
from merlin.train.results.predict import predict_file
from merlin.train.results.samples import open_samples
from merlin.train.results.surrogate import ExtrapolationWarning, Surrogate, load_surrogate
from merlin.train.run_directory import RunDirectory

NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    mixed = "normalise={inputs: standard, energy: log, time: minmax, radius: none, image: {name: log, offset: 0.001}}"
    return make_trained(tmp_path_factory.mktemp("trained"), mixed)


@pytest.fixture(scope="module")
def surrogate(run: RunDirectory) -> Surrogate:
    return load_surrogate(run.path, device="cpu")


def inputs(num: int, seed: int = 1) -> np.ndarray:
    x = arrays(num, seed)
    return 0.98 * np.stack([x[name] for name in NAMES], axis=1)


def test_it_says_what_it_takes_and_gives(surrogate: Surrogate) -> None:
    assert surrogate.inputs == NAMES
    assert surrogate.scalars == ("energy", "radius", "time")
    assert surrogate.images == {"image": (8, 8, 2)}
    assert surrogate.ranges["a"][0] == pytest.approx(-1, abs=0.02)


def test_predictions_are_the_models_own_denormalised_in_the_layout_of_the_data_set(
    run: RunDirectory, surrogate: Surrogate
) -> None:
    data = open_data(run, load_config(run.config_path).config)
    dataset = data.dataset("test")
    batch = data.shapes.with_channels(dataset[list(range(len(dataset)))])
    with torch.no_grad():
        made = load_best(run.path).trainee.predict(batch["inputs"])
    ens = open_shards(data.ens.path)
    rows = dataset.rows
    found = surrogate.predict({name: ens.inputs[name][rows] for name in NAMES}, batch_size=7)
    expected = dataset.inverse("scalars", made["scalars"].numpy())
    for i, name in enumerate(surrogate.scalars):
        np.testing.assert_allclose(found[name], expected[:, i], rtol=2e-5)
        assert found[name].dtype == np.float64
    image = dataset.inverse("image", made["image"]).movedim(1, -1).numpy()
    np.testing.assert_allclose(found["image"], image, rtol=2e-4, atol=1e-6)
    assert found["image"].shape == ens["image"][rows].shape


def test_arrays_mappings_and_data_frames_mean_the_same(surrogate: Surrogate) -> None:
    x = inputs(5)
    whole = surrogate.predict(x)
    columns = dict(zip(NAMES, x.T, strict=True))
    frame = pd.DataFrame({**columns, "further": 1.0})[["further", "d", "c", "b", "a"]]
    for given in (columns, frame):
        np.testing.assert_array_equal(surrogate.predict(given)["energy"], whole["energy"])
    one = surrogate.predict({"a": 0.1, "b": 0.2, "c": 0.3, "d": np.linspace(0, 0.5, 3)}, fields=["time"])
    assert list(one) == ["time"] and one["time"].shape == (3,)
    assert surrogate.predict(dict.fromkeys(NAMES, 0.0))["image"].shape == (1, 8, 8, 2)


def test_what_cannot_be_asked_is_explained(surrogate: Surrogate) -> None:
    for given, words in (
        ({"a": 1.0, "c": 2.0}, "missing columns b, d"),
        (np.zeros((3, 5)), r"expected \(samples, 4\)"),
        ([[0.0, 0.0, np.nan, 0.0]], "row 0, 'c' is nan"),
        ({**dict.fromkeys(NAMES, 0.0), "a": np.zeros(2), "b": np.zeros(3)}, "of one length"),
        ("new.csv", "in an array, or in a mapping or a DataFrame .* found 'new.csv'"),
        ({**dict.fromkeys(NAMES, 0.0), "c": "zero"}, "'c': expected real numbers, .* found 'zero'"),
        ({**dict.fromkeys(NAMES, 0.0), "c": np.array([1j])}, "'c': expected real numbers, .* found complex"),
        ([[0.0, 0.0, 0.0, 0.0], [0.0, 1e300, 0.0, 0.0]], r"row 1, 'b': 1e\+300 is too far outside"),
    ):
        with pytest.raises(UsageError, match=words):
            surrogate.predict(given)
    with pytest.raises(UsageError, match="predicts no 'mass'; it predicts: energy"):
        surrogate.predict(np.zeros((1, 4)), fields=["mass"])
    for batch_size in (0, -1, 2.5):
        with pytest.raises(UsageError, match=f"from 1 on, not {batch_size}"):
            surrogate.predict(np.zeros((3, 4)), batch_size=batch_size)


def test_leaving_the_range_of_the_training_data_is_told(
    surrogate: Surrogate, recwarn: pytest.WarningsRecorder
) -> None:
    surrogate.predict([[low for low, _ in surrogate.ranges.values()]])
    assert not [w for w in recwarn if w.category is ExtrapolationWarning]
    with pytest.warns(ExtrapolationWarning, match="c in 2 .*d in 1"):
        surrogate.predict([[0, 0, 3, 0], [0, 0, -2, 9.0], [0, 0, 0, 0]])


def test_a_copy_of_best_is_enough(run: RunDirectory, surrogate: Surrogate, tmp_path: Path) -> None:
    shutil.copytree(run.best, tmp_path / "elsewhere")
    copy = merlin.load_surrogate(tmp_path / "elsewhere", device="cpu")
    np.testing.assert_array_equal(copy.predict(inputs(3))["image"], surrogate.predict(inputs(3))["image"])


def test_runs_without_a_model_are_explained(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no training run"):
        load_surrogate(tmp_path)
    shutil.copytree(run.path, tmp_path / "young", ignore=shutil.ignore_patterns("best"))
    with pytest.raises(TrainingError, match="no best model yet"):
        load_surrogate(tmp_path / "young")
    shutil.copytree(run.best, tmp_path / "hurt")
    content = bytearray((tmp_path / "hurt" / "model.pt").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "hurt" / "model.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_surrogate(tmp_path / "hurt")


def write_samples(path: Path, x: np.ndarray) -> Path:
    columns = dict(zip(NAMES, x.T, strict=True))
    shuffled = {"id": np.arange(len(x)), **{name: columns[name] for name in "cbda"}}
    match path.suffix:
        case ".csv":
            pd.DataFrame(shuffled).to_csv(path, index=False)
        case ".parquet":
            pd.DataFrame(shuffled).to_parquet(path)
        case ".npz":
            np.savez(path, **shuffled)
        case ".npy":
            np.save(path, x)
        case ".h5":
            with h5py.File(path, "w") as file:
                for name, values in shuffled.items():
                    file[f"inputs/{name}"] = values
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".npy", ".h5"])
def test_samples_are_read_from_any_kind_of_file(surrogate: Surrogate, tmp_path: Path, suffix: str) -> None:
    x = inputs(11)
    samples = open_samples(write_samples(tmp_path / f"samples{suffix}", x), NAMES, {})
    blocks = list(samples.blocks(4))
    assert [lo for lo, _ in blocks] == [0, 4, 8]
    np.testing.assert_allclose(np.concatenate([block for _, (block,) in blocks]), x, rtol=1e-12)
    assert bool(samples.note) == (suffix == ".npy")
    samples.close()


def test_files_without_names_are_taken_in_order_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("1,2,3,4\n5,6,7,8\n")
    samples = open_samples(tmp_path / "plain.csv", NAMES, {})
    assert "a, b, c, d" in samples.note and samples.num == 2
    assert "titles" not in samples.note
    (tmp_path / "numbered.csv").write_text("0,1,2,3\n5,6,7,8\n")
    samples = open_samples(tmp_path / "numbered.csv", NAMES, {})
    assert "first line, 0, 1, 2, 3, is taken for a sample" in samples.note and samples.num == 2
    (tmp_path / "titled.csv").write_text("# b,a,d,c\n1,2,3,4\n")
    ((_, (x,)),) = open_samples(tmp_path / "titled.csv", NAMES, {}).blocks(9)
    assert x.tolist() == [[2, 1, 4, 3]]
    np.savez(tmp_path / "whole.npz", inputs=np.ones((3, 4)))
    assert open_samples(tmp_path / "whole.npz", NAMES, {}).num == 3


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize(
    ("keys", "fields", "expected"),
    [
        (["fields/x", "inputs/x"], (), "inputs/x"),
        (["fields/x", "parameters/x"], (), "parameters/x"),
        (["x", "inputs/x"], (), "inputs/x"),
        (["x", "inputs/x"], ("x",), "x"),
        (["fields/x", "inputs/x"], ("x",), "fields/x"),
    ],
)
def test_of_an_input_and_a_field_with_one_name_the_kind_that_the_model_had_is_read(
    tmp_path: Path, suffix: str, keys: list[str], fields: tuple[str, ...], expected: str
) -> None:
    columns = {key: np.full(3, 1.0 + number) for number, key in enumerate(keys)}
    path = tmp_path / f"samples{suffix}"
    if suffix == ".npz":
        np.savez(path, **columns)
    else:
        with h5py.File(path, "w") as file:
            file.update(columns)
    ((_, (x,)),) = open_samples(path, ["x"], {}, fields).blocks(9)
    assert x.tolist() == columns[expected][:, None].tolist()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("s.csv", "a,b\n1,2\n", "missing columns c, d; there are: a, b"),
        ("s.csv", "a,b,c,d\n1,2,3,4\n1,2,,4\n", "s.csv:3:.*'c': nan is no finite number"),
        ("s.csv", "a,b,c,d\n1,2,3,x\n2,3,4,5\n", "'d'"),
        ("s.csv", "a,b,c,d\n1,2,3,4\n1,2,1e300,4\n", r"s.csv:3:.*'c': 1e\+300 is too far outside"),
        ("s.csv", "1,2,3\n", "no line of titles, and 3 columns"),
        ("s.csv", "a,b,c,d\n", "holds no samples"),
        ("s.txt", "a,b,c,d\n", "samples are read from"),
    ],
)
def test_samples_that_cannot_be_used_are_explained(
    surrogate: Surrogate, tmp_path: Path, name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(MerlinError, match=words):
        predict_file(surrogate, tmp_path / name, tmp_path / "out.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == [name], "nothing half-written is left"


def test_a_column_of_numbers_may_have_an_axis_of_length_one(tmp_path: Path) -> None:
    x = inputs(5)
    path = tmp_path / "samples.npz"
    columns = {name: column[:, None] for name, column in zip(NAMES, x.T, strict=True)}
    np.savez(path, **columns)
    ((_, (read,)),) = open_samples(path, NAMES, {}).blocks(9)
    np.testing.assert_array_equal(read, x)
    for wrong, words in (
        (np.zeros((5, 2)), r"one number per sample of 'c', found numbers of shape \(samples, 2\)"),
        (np.zeros(5, complex), "'c' holds no real numbers"),
    ):
        np.savez(path, **{**columns, "c": wrong})
        with pytest.raises(UsageError, match=words):
            list(open_samples(path, NAMES, {}).blocks(9))


def test_predictions_do_not_replace_their_samples(surrogate: Surrogate, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "s.csv", inputs(3))
    (tmp_path / "link.csv").symlink_to(samples)
    before = samples.read_bytes()
    for out in (samples, tmp_path / "link.csv"):
        with pytest.raises(UsageError, match="predictions would replace them"):
            predict_file(surrogate, samples, out)
    assert samples.read_bytes() == before


def read_back(path: Path) -> dict[str, np.ndarray]:
    match path.suffix:
        case ".npz":
            return dict(np.load(path))
        case ".csv":
            return {name: column.to_numpy() for name, column in pd.read_csv(path).items()}
        case ".h5":
            with h5py.File(path) as file:
                return {name: file[name][:] for name in file}
    table = pq.read_table(path)
    tensors = {"image": table["image"].combine_chunks().to_numpy_ndarray()}
    return {name: table[name].to_numpy() for name in table.column_names if name != "image"} | tensors


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ".h5"])
def test_predictions_are_written_in_order_beside_the_inputs(
    surrogate: Surrogate, tmp_path: Path, suffix: str
) -> None:
    x = inputs(70)
    samples = write_samples(tmp_path / "samples.csv", x)
    told: list[tuple[int, int]] = []
    out = tmp_path / f"out{suffix}"
    done = predict_file(surrogate, samples, out, batch_size=16, progress=lambda n, of: told.append((n, of)))
    found, expected = read_back(out), surrogate.predict(x)
    assert told[-1] == (70, 70) and done.num == 70 and not done.outside
    for i, name in enumerate(NAMES):
        np.testing.assert_allclose(found[name], x[:, i], rtol=1e-12)
    wanted = set(surrogate.scalars) | ({"image"} if suffix != ".csv" else set())
    assert set(found) == set(NAMES) | wanted == set(NAMES) | set(done.fields)
    for name in wanted:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-12)
    assert (suffix == ".csv") == any("no place for image" in note for note in done.notes)
    assert len(list(tmp_path.iterdir())) == 2, "temporary files are gone"


def test_images_are_not_left_out_of_a_csv_file_that_was_asked_for_them(
    surrogate: Surrogate, tmp_path: Path
) -> None:
    samples = write_samples(tmp_path / "samples.csv", inputs(2))
    with pytest.raises(UsageError, match="no place for images"):
        predict_file(surrogate, samples, tmp_path / "out.csv", fields=["image", "energy"])
    with pytest.raises(UsageError, match=r"written as \.npz"):
        predict_file(surrogate, samples, tmp_path / "out.xlsx")


def test_importing_merlin_does_not_load_torch() -> None:
    script = "import sys, merlin; merlin.load_surrogate; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def changed(run: RunDirectory, folder: Path, change) -> Path:
    """A copy of `best`, whose state `change` has changed."""
    shutil.copytree(run.best, folder)
    state = torch.load(folder / "model.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "model.pt")
    return folder


@pytest.mark.parametrize(
    "name", ["best/model.pt", "best/normalise.json", "run.json", "config.yaml", "trainers/0/metrics.jsonl"]
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_of_a_foreign_run_is_refused(
    run: RunDirectory, tmp_path: Path, name: str, kind: str
) -> None:
    shutil.copytree(run.path, tmp_path / "foreign")
    path = tmp_path / "foreign" / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    foreign = RunDirectory(tmp_path / "foreign")
    with pytest.raises(MerlinError, match=r"no regular file|has no best model"):
        match path.name:
            case "config.yaml":
                load_config(path)
            case "metrics.jsonl":
                read_history(foreign)
            case "run.json":
                foreign.facts()
            case _:
                load_best(foreign.path)


def test_a_json_file_that_is_too_large_or_too_deep_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    folder = changed(run, tmp_path / "best", lambda state: None)
    with (folder / "normalise.json").open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)
    with pytest.raises(CheckpointError, match="more than"):
        load_best(folder)
    (folder / "normalise.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        load_best(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(quantities={"columns": 5}),
        lambda state: state["quantities"]["inputs"][0].update(name=3),
        lambda state: state.update(version=torch.zeros(3)),
        lambda state: state["model"].update(version=torch.zeros(3)),
        lambda state: state["model"].update(options=3),
        lambda state: state["model"]["options"].update(depth=10**6),
        lambda state: state["model"]["options"].update(width=200_000),
        lambda state: state["state_dict"].update(dict.fromkeys(state["state_dict"], 3)),
    ],
    ids=["columns", "name", "version", "code", "options", "depth", "width", "weights"],
)
def test_odd_facts_in_a_foreign_model_are_damage(run: RunDirectory, tmp_path: Path, change) -> None:
    with pytest.raises(CheckpointError, match=r"is damaged|expected merlin-model version 1"):
        load_best(changed(run, tmp_path / "best", change))


def test_an_image_of_two_axes_in_a_foreign_model_is_an_error_that_says_so(
    run: RunDirectory, tmp_path: Path
) -> None:
    folder = changed(run, tmp_path / "best", lambda state: state["shapes"].update(images={"im": [2, 4]}))
    with pytest.raises(TrainingError, match="cannot be built"):
        load_best(folder)


def test_facts_of_a_foreign_run_that_cannot_be_are_damage(run: RunDirectory, tmp_path: Path) -> None:
    whole = json.loads((run.path / "run.json").read_text())
    for facts in ([], {**whole, "quantities": {"inputs": 5}}, {**whole, "inputs": 5}, {**whole, "more": 1}):
        (tmp_path / "run.json").write_text(json.dumps(facts))
        with pytest.raises(TrainingError, match=r"is damaged|does not say its format"):
            RunDirectory(tmp_path).facts()


def test_compressed_weights_are_refused_before_they_are_unpacked(run: RunDirectory, tmp_path: Path) -> None:
    folder = changed(run, tmp_path / "best", lambda state: None)
    with zipfile.ZipFile(folder / "model.pt", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more", b"0" * 1000)
    with pytest.raises(CheckpointError, match="compressed"):
        load_best(folder)
