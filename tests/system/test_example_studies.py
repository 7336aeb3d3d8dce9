"""Every study under `specs/` runs with the real command, to verified data where it makes any."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import SCIENCE, run_merlin, write_merlin

import merlin
from merlin.batch.registry import SCHEDULERS

SPECS = Path(__file__).resolve().parents[2] / "specs"


def command(*argv: str, cwd: Path) -> str:
    done = run_merlin(*argv, cwd=cwd, timeout=240)
    assert done.returncode == 0, f"{argv} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run(spec: str, cwd: Path, *variables: str) -> Path:
    """Run `specs/<spec>` and return its workspace."""
    command(
        "run", "--local", "--workers", "2", str(SPECS / spec), "--vars", "OUTPUT_PATH=.", *variables, cwd=cwd
    )
    (info,) = cwd.glob("*/merlin_info")
    return info.parent


def test_every_folder_of_specs_has_a_test_here() -> None:
    assert {p.parent.name for p in SPECS.glob("*/*.yaml")} == {
        "hello",
        "icf",
        "covid",
        "simple_chain",
        "schedulers",
    }


def test_hello_throws_remarks_and_finds_the_longest(tmp_path: Path) -> None:
    workspace = run("hello/hello.yaml", tmp_path)
    counts = json.loads(command("status", str(workspace), "--json", cwd=tmp_path))["totals"]
    assert counts["ok"] == counts["planned"] > 0
    assert (workspace / "longest/longest.out").read_text().strip()


def test_the_chain_reports_what_its_first_step_made(tmp_path: Path) -> None:
    workspace = run("simple_chain/simple_chain.yaml", tmp_path)
    (report,) = workspace.glob("report/NUMBER.12/*.out")
    assert report.read_text() == "12 squared is 144\n"


def test_icf_makes_verified_shards_of_scalars_series_and_images(tmp_path: Path) -> None:
    workspace = run("icf/icf.yaml", tmp_path, "N_SAMPLES=60")
    command("shards", "verify", str(workspace / "collect"), cwd=tmp_path)
    ens = merlin.open_shards(workspace / "collect")
    assert len(ens) == 60
    assert ens["image_0_0"][:].shape == (60, 64, 64, 4)
    assert np.all(ens["Yn"][:] > 0)
    assert sum(len(rows) for rows in ens.splits.values()) == 60


def test_icf_gives_the_same_data_however_it_is_cut_into_chunks(tmp_path: Path) -> None:
    digests = []
    for workers in ("1", "2"):
        folder = tmp_path / workers
        folder.mkdir()
        argv = ["run", "--local", "--workers", workers, str(SPECS / "icf/icf.yaml")]
        command(*argv, "--vars", "OUTPUT_PATH=.", "N_SAMPLES=80", cwd=folder)
        (manifest,) = folder.glob("*/collect/manifest.json")
        shards = json.loads(manifest.read_text())["shards"]
        digests.append([shard["content_digest"] for shard in shards])
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_icf_train_ends_in_a_surrogate_and_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    write_merlin(programs / "merlin", SCIENCE)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    few = ["N_SAMPLES=200", "TRAINERS=2", "EPOCHS=4", "INTERVAL=4"]
    workspace = run("icf/icf_train.yaml", tmp_path, *few)
    best = json.loads((workspace / "tournament/run/best/best.json").read_text())
    assert {"loss", "scalars", "images", "inverse", "cycle"} <= set(best["metrics"])
    assert (workspace / "tournament/run/trainers/1/metrics.jsonl").is_file()
    assert "Yn" in (workspace / "evaluate/report.html").read_text()


@pytest.mark.slow
def test_covid_collects_what_its_scripts_write_and_ranks_the_fits(tmp_path: Path) -> None:
    workspace = run("covid/covid.yaml", tmp_path, "N_SAMPLES=40", "N_BEST=3", f"PYTHON={sys.executable}")
    command("shards", "verify", str(workspace / "collect"), cwd=tmp_path)
    ens = merlin.open_shards(workspace / "collect")
    assert ens["cases"][:].shape == (40, 120)
    best = int(np.argmin(ens["misfit"][:]))
    out = (workspace / "best/best.out").read_text()
    assert str(int(ens.sample_id[best])) in out


@pytest.mark.parametrize("scheduler", sorted(path.stem for path in SPECS.glob("schedulers/*.yaml")))
def test_an_example_of_a_scheduler_runs_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs_without_launchers: Path, scheduler: str
) -> None:
    monkeypatch.setenv("PATH", str(programs_without_launchers))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "FLUX_", "LSB_", "PBS_"))]:
        monkeypatch.delenv(name)
    workspace = run(f"schedulers/{scheduler}.yaml", tmp_path)
    rows = [line.split() for line in (workspace / "total/total.out").read_text().splitlines()]
    assert [float(radius) for radius, _ in rows] == [1.0, 1.3333, 1.6667, 2.0]
    assert all(abs(float(area) - np.pi * float(radius) ** 2) < 0.001 for radius, area in rows)


@pytest.fixture(scope="module")
def programs_without_launchers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the PATH with every program that there is, but none that starts parallel ones."""
    launchers = {"mpirun", "mpiexec", *(name for one in SCHEDULERS.values() for name in one.programs)}
    folder = tmp_path_factory.mktemp("programs")
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if program.name not in launchers and not link.is_symlink():
                link.symlink_to(program)
    return folder
