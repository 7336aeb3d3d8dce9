"""`merlin evaluate`, `predict` and `export-model` as they are called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from surrogate_data import arrays
from trained import make_trained

from merlin.cli.main import main
from merlin.train.run_directory import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_trained(tmp_path_factory.mktemp("trained"), "fields.scalars=[energy]", steps=10)


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as end:
        main(list(map(str, argv)))
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


def test_a_model_is_evaluated_asked_and_exported(run: RunDirectory, tmp_path: Path, capsys) -> None:
    code, out, err = call(
        capsys, "evaluate", run.path, "-o", tmp_path / "report.html", "--json", "--split", "validation"
    )
    told = json.loads(out)
    assert code == 0 and told["split"] == "validation" and "energy" in told["scalars"], err
    assert Path(told["report"]).read_text().startswith("<!doctype html>")

    (tmp_path / "samples.csv").write_text("d,c,b,a\n0,0.1,0.2,0.3\n5,0,0,0\n")
    code, out, err = call(capsys, "predict", run.path, tmp_path / "samples.csv", "-o", tmp_path / "out.npz")
    assert code == 0 and "2 samples" in out and "d in 1" in err
    assert np.load(tmp_path / "out.npz")["image"].shape == (2, 8, 8, 2)

    code, out, _ = call(
        capsys, "export-model", run.path, "--to", "torchscript", "-o", tmp_path / "m.pt", "--json"
    )
    assert code == 0 and [c["name"] for c in json.loads(out)["inputs"]] == ["a", "b", "c", "d"]
    assert (tmp_path / "m.pt").stat().st_size > 0


def test_mistakes_are_told_with_exit_code_2(run: RunDirectory, tmp_path: Path, capsys) -> None:
    (tmp_path / "samples.csv").write_text("a,b\n0,1\n")
    code, _, err = call(capsys, "predict", run.path, tmp_path / "samples.csv", "-o", tmp_path / "out.csv")
    assert code == 2 and "missing columns c, d" in err and not (tmp_path / "out.csv").exists()
    code, _, err = call(capsys, "evaluate", tmp_path)
    assert code == 2 and "no training run" in err
    code, _, err = call(capsys, "evaluate", run.path, "--split", "tset", "--device", "cpu")
    assert code == 2 and "there are: train, validation, test" in err
    code, _, err = call(capsys, "evaluate", run.path, "--device", "gpu")
    assert code == 1 and "'gpu' is no device; write auto, cpu, cuda or cuda:N" in err


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "column",
            "predicts 'scalars' of shape (2, 1) for 2 samples; expected a tensor of shape (2, 3)",
        ),
        ("key", "predicts only 'scalar'; expected 'scalars'"),
        ("raises", "fails to predict: IndexError"),
    ],
)
def test_a_model_that_was_trained_and_predicts_something_else_is_refused(
    tmp_path: Path, capsys, how: str, message: str
) -> None:
    model = f"model={{name: 'tiny_models:Wrong', how: {how}, late: true}}"
    wrong = make_trained(tmp_path, "fields.images=[]", model, steps=1)
    np.savez(tmp_path / "samples.npz", **arrays(3))
    commands = (
        ("predict", wrong.path, tmp_path / "samples.npz", "-o", tmp_path / "out.npz", "--trust-code"),
        ("evaluate", wrong.path, "--trust-code"),
    )
    for command in commands:
        code, _, err = call(capsys, *command, "--device", "cpu")
        assert code == 1 and f"merlin: error: the model tiny_models:Wrong {message}" in err
