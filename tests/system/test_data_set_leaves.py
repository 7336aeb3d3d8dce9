"""The data set of the ICF study, as its user looks at it, proves it, asks it, and takes it elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import merlin
from merlin.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
NUM = 24


def merlin_command(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, f"{words} exited {done.exit_code}\n{done.output}"
    return done.stdout


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("icf")
    variables = [f"OUTPUT_PATH={folder}", f"N_SAMPLES={NUM}"]
    merlin_command("run", "--local", "--workers", "1", ROOT / "specs/icf/icf.yaml", "--vars", *variables)
    (found,) = folder.glob("icf_*/collect")
    return found


@pytest.fixture(scope="module")
def ens(data_set: Path) -> merlin.Ensemble:
    return merlin.open_shards(data_set)


def test_it_is_described_verified_drawn_and_asked(
    data_set: Path, ens: merlin.Ensemble, tmp_path: Path
) -> None:
    described = json.loads(merlin_command("shards", "describe", "--json", data_set))
    assert "TW/(mm^2 sr)" in json.dumps(described)
    (report,) = json.loads(merlin_command("shards", "verify", "--json", data_set))
    assert report["ok"] and report["num_rows"] == NUM
    for name, magic in (("data.png", b"\x89PNG"), ("data.html", b"<!doctype html")):
        merlin_command("shards", "plot", data_set, "--out", tmp_path / name)
        assert (tmp_path / name).read_bytes()[: len(magic)].lower() == magic.lower()
    limit = float(np.median(ens["Yn"][:]))
    assert len(ens.query(f"Yn > {limit!r}")) == int((ens["Yn"][:] > limit).sum())


@pytest.fixture
def exported(data_set: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    merlin_command("shards", "export", "--to", request.param, data_set, "-o", tmp_path / request.param)
    return tmp_path / request.param


def same(ens: merlin.Ensemble, row: int, image: object, scalar: object) -> None:
    np.testing.assert_array_equal(np.asarray(image).reshape(64, 64, 4), ens["image_0_0"][row])
    assert float(np.asarray(scalar)) == ens["Yn"][row]


@pytest.mark.parametrize("exported", ["npz"], indirect=True)
def test_numpy_reads_npz(exported: Path, ens: merlin.Ensemble) -> None:
    (path,) = exported.glob("*.npz")
    with np.load(path) as found:
        for i in range(NUM):
            same(ens, i, found["image_0_0"][i], found["Yn"][i])


@pytest.mark.parametrize("exported", ["parquet"], indirect=True)
def test_pyarrow_reads_parquet(exported: Path, ens: merlin.Ensemble) -> None:
    from pyarrow import parquet

    table = parquet.read_table(exported / "data")
    images = table["image_0_0"].combine_chunks()
    for i in range(NUM):
        same(ens, i, images[i].to_numpy(), table["Yn"][i].as_py())


@pytest.mark.parametrize("exported", ["zarr"], indirect=True)
def test_zarr_reads_zarr(exported: Path, ens: merlin.Ensemble) -> None:
    import zarr

    group = zarr.open_group(exported / "data.zarr", mode="r")
    images, yields = group["fields/image_0_0"][:], group["fields/Yn"][:]
    for i in range(NUM):
        same(ens, i, images[i], yields[i])


@pytest.mark.parametrize("exported", ["webdataset"], indirect=True)
def test_webdataset_reads_webdataset(exported: Path, ens: merlin.Ensemble) -> None:
    import webdataset

    urls = sorted(map(str, exported.glob("*.tar")))
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    assert len(samples) == NUM
    for i, sample in enumerate(samples):
        same(ens, i, sample["image_0_0.npy"], sample["json"]["scalars"]["Yn"])


@pytest.mark.parametrize("exported", ["mds"], indirect=True)
def test_streaming_reads_mds(exported: Path, ens: merlin.Ensemble, tmp_path: Path) -> None:
    libraries = sorted((ROOT / ".cache").glob("mds-*/.complete"))
    if not libraries:
        assert not os.environ.get("CI"), "mosaicml-streaming is not installed: run tests/install_readers.sh"
        pytest.skip("mosaicml-streaming is not installed: run tests/install_readers.sh")
    reader = ROOT / "tests/support/mds_reader.py"
    env = {**os.environ, "PYTHONPATH": str(libraries[-1].parent)}
    subprocess.run([sys.executable, reader, exported, tmp_path / "found.npz"], env=env, check=True)
    with np.load(tmp_path / "found.npz") as found:
        for i in range(NUM):
            same(ens, i, found[f"{i}:image_0_0"], found[f"{i}:Yn"])


@pytest.mark.parametrize("exported", ["lbann"], indirect=True)
def test_a_reader_of_lbanns_files_reads_lbann(exported: Path, ens: merlin.Ensemble) -> None:
    from lbann_reader import Reader, read_sample_list

    reader = Reader(exported / "data_schema.yaml", exported / "experiment_schema.yaml")
    samples = list(read_sample_list(exported / "inclusion.sample_list").samples())
    assert len(samples) == NUM
    (place,) = (field for field in reader.fields if field.endswith("/Yn"))
    scale, bias = reader.fields[place]["scale"], reader.fields[place]["bias"]
    for i, (path, name) in enumerate(samples):
        found = reader.read(path, name)
        (image,) = (values for field, values in found.items() if field.endswith("/image_0_0"))
        np.testing.assert_allclose((float(found[place][0]) - bias) / scale, ens["Yn"][i], rtol=1e-4)
        assert image.shape == (64 * 64 * 4,) and np.all(np.isfinite(image))
