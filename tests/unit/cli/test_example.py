"""`merlin example`: the studies of specs/, in a checkout and where Merlin is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import merlin

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_list_names_every_spec_and_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert merlin("example", "list") == 0
    out = capsys.readouterr().out
    assert all(path.stem in out for path in (ROOT / "specs").glob("*/*.yaml"))
    assert "inertial-confinement-fusion" in out


def test_a_spec_that_is_one_file_is_copied_here_under_its_name(here: Path) -> None:
    """Upstream's scripts say `merlin example simple_chain; merlin run simple_chain.yaml`."""
    assert merlin("example", "simple_chain") == 0
    assert (here / "simple_chain.yaml").read_bytes() == ROOT.joinpath(
        "specs/simple_chain/simple_chain.yaml"
    ).read_bytes()
    assert [p.name for p in here.iterdir()] == ["simple_chain.yaml"]


def test_a_study_of_many_files_is_copied_as_a_folder(here: Path) -> None:
    assert merlin("example", "icf") == 0
    copied = {p.relative_to(here).as_posix() for p in here.rglob("*") if p.is_file()}
    assert copied >= {"icf/icf.yaml", "icf/icf_train.yaml", "icf/icf.py", "icf/train/surrogate.yaml"}
    assert not any("__pycache__" in name for name in copied)


def test_a_path_can_be_chosen(here: Path) -> None:
    assert merlin("example", "icf_train", "--path", "mine") == 0
    assert merlin("example", "hello", "-p", "mine") == 0
    assert (here / "mine/icf_train.yaml").is_file() and (here / "mine/hello.yaml").is_file()


def test_nothing_is_written_over(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "hello.yaml").write_text("mine")
    (here / "icf").mkdir()
    assert merlin("example", "hello") == merlin("example", "icf") == 2
    assert "exists already" in capsys.readouterr().err
    assert (here / "hello.yaml").read_text() == "mine"


def test_what_came_with_another_example_is_there_already(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for first, second in (("slurm", "flux"), ("hello", "hello")):
        assert merlin("example", first) == 0
        capsys.readouterr()
        assert merlin("example", second) == 0
        assert f"{second}.yaml is there already; run it with: merlin run" in capsys.readouterr().out
    (here / "schedulers/flux.yaml").write_text("mine")
    (here / "schedulers/area.py").unlink()
    assert merlin("example", "flux") == merlin("example", "lsf") == 2
    assert (here / "schedulers/flux.yaml").read_text() == "mine"


def test_a_path_that_is_a_file_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "afile").write_text("mine")
    for name in ("hello", "icf"):
        assert merlin("example", name, "-p", "afile") == 2
        assert "afile exists already" in capsys.readouterr().err


def test_an_unknown_example_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert merlin("example", "failure") == 2
    message = capsys.readouterr().err
    assert "not found" in message and "simple_chain" in message


def test_what_is_built_to_be_installed_has_the_studies(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    built = tmp_path / "built"
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path, "build_py", "--build-lib", built],
        cwd=ROOT, check=True, capture_output=True, timeout=200,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-m", "merlin.cli", "example", "covid"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(built)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "covid/observed.csv").is_file()
    assert (built / "merlin/specs/icf/train/surrogate.yaml").is_file()
