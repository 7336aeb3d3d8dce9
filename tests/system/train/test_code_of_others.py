"""Run directories of other people: what they name is not run unless the user agrees."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from trained import make_trained

import merlin
from merlin.cli.main import main
from merlin.errors import CheckpointError, UsageError
from merlin.train.models.pretrained import Pretrained
from merlin.train.prepare import prepare
from merlin.train.results.surrogate import load_surrogate
from merlin.train.run_directory import RunDirectory
from merlin.train.state_file import read_state

PLANTED = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
def model(*args, **options):
    Path(__file__).with_name("called").touch()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_trained(tmp_path_factory.mktemp("trained"), "fields.scalars=[energy]", steps=4)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, from which models are imported, with a module that leaves traces."""
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "samples.csv").write_text("a,b,c,d\n0,0,0,0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "system", lambda *args: (tmp_path / "called").touch())
    return tmp_path


def renamed(run: RunDirectory, folder: Path, name: str) -> Path:
    """A copy of the run, all of whose files say that its model is another one."""
    copy = folder / "theirs"
    shutil.copytree(run.path, copy)
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["model"], config["directory"] = {"name": name}, str(copy)
    (copy / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    state = read_state(copy / "best" / "model.pt")
    state["model"] |= {"name": name, "options": {}, "version": None}
    torch.save(state, copy / "best" / "model.pt")
    facts = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**facts, "model_version": None}))
    return copy


COMMANDS = {
    "predict": "predict theirs samples.csv -o out.npz",
    "evaluate": "evaluate theirs --split validation",
    "evaluate elsewhere": "evaluate theirs --data data",
    "onnx": "export-model theirs --to onnx -o out.onnx",
    "torchscript": "export-model theirs --to torchscript -o out.pt",
    "resume": "train theirs training.steps=8",
    "check": "train theirs --check",
    "its configuration": "train theirs/config.yaml --check",
    "lbann": "train theirs --emit lbann out",
}


@pytest.mark.parametrize("name", ["os:system", "planted:model", "merlin.train.models.regressor:Regressor"])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_runs_what_the_run_of_somebody_else_names(
    run: RunDirectory, here: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed(run, here, name)
    (here / "data").symlink_to(run.path.parent / "d")
    with pytest.raises(SystemExit) as end:
        main(command.split())
    err = capsys.readouterr().err
    assert end.value.code == 2 and f"the model {name} is code" in err and "--trust-code" in err, err
    line = 1 + (here / "theirs/config.yaml").read_text().splitlines().index(f"  name: {name}")
    assert f"theirs/config.yaml:{line}" in err
    assert not (here / "imported").exists() and not (here / "called").exists()


def test_a_copy_of_the_best_model_alone_runs_nothing_either(run: RunDirectory, here: Path) -> None:
    best = renamed(run, here, "planted:model") / "best"
    best.rename(here / "best")
    with pytest.raises(UsageError, match=r"best/model\.pt: the model planted:model is code"):
        merlin.load_surrogate(here / "best", device="cpu")
    assert not (here / "imported").exists()


def test_a_user_who_agrees_gets_the_model(run: RunDirectory, here: Path) -> None:
    (here / "mine.py").write_text("from merlin.train.models.regressor import Regressor\n"
                                  "def model(shapes, **options):\n"
                                  "    return Regressor(shapes, Regressor.Options(width=16))\n")  # fmt: skip
    theirs = renamed(run, here, "mine:model")
    with pytest.raises(UsageError, match="mine:model"):
        load_surrogate(theirs, device="cpu")
    assert load_surrogate(theirs, device="cpu", trust_code=True).scalars == ("energy",)
    with pytest.raises(SystemExit) as end:
        main(["predict", "theirs", "samples.csv", "-o", "out.npz", "--trust-code"])
    assert not end.value.code and (here / "out.npz").is_file()


def test_a_model_that_the_users_own_configuration_names_needs_no_flag(run: RunDirectory, here: Path) -> None:
    theirs = renamed(run, here, "own:model")
    (here / "own.py").write_text("raise ZeroDivisionError\n")
    shutil.copy(theirs / "config.yaml", here / "train.yaml")
    for path, words in (("train.yaml", []), ("theirs", ["model.name=own:model"])):
        with pytest.raises(ZeroDivisionError):  # it is imported
            prepare(here / path, words)
    with pytest.raises(UsageError, match="own:model is code"):
        prepare(here / "theirs", ["training.steps=8"])


def test_the_autoencoder_of_somebody_else_is_weights_alone(run: RunDirectory, here: Path) -> None:
    theirs = renamed(run, here, "planted:model")
    with pytest.raises(UsageError, match="is a run of the model planted:model"):
        Pretrained(theirs)
    assert not (here / "imported").exists()


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("content", ["pickle", "list", "nothing"])
def test_weights_that_are_a_program_are_damaged(run: RunDirectory, here: Path, content: str) -> None:
    theirs = renamed(run, here, "regressor")
    made = io.BytesIO()
    torch.save({"pickle": {"format": Bomb(here / "called")}, "list": [], "nothing": {}}[content], made)
    (theirs / "best/model.pt").write_bytes(made.getvalue())
    assert zipfile.is_zipfile(theirs / "best/model.pt")
    with pytest.raises(
        CheckpointError, match=r"is damaged|does not say its format|nothing of it was run"
    ) as error:
        load_surrogate(theirs, device="cpu")
    assert "weights_only" not in str(error.value)  # torch tells people to switch the protection off
    assert not (here / "called").exists()


def test_a_configuration_with_a_python_object_is_refused(run: RunDirectory, here: Path) -> None:
    theirs = renamed(run, here, "regressor")
    text = (theirs / "config.yaml").read_text()
    (theirs / "config.yaml").write_text(text.replace("name: regressor", "name: !!python/name:planted.model"))
    with pytest.raises((UsageError, merlin.errors.ConfigError)):
        prepare(theirs)
    assert not (here / "imported").exists()
