"""Updates of studies that were cut off, and the way back after a rerun: no task takes files of another revision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from user_home import UserHome
from waiting import wait_until

import merlin

# `post` goes on from its file `state` if there is one; what the files bad and gate do, tests decide
SPEC = """
description: {name: begun, description: a study with checkpoints}
study:
  - name: sim
    run:
      cmd: |
        test ! -e $(SPECROOT)/bad || test $(MERLIN_SAMPLE_ID) != 3 || exit 1
        echo $(X)0 > x.txt
  - name: post
    run:
      depends: [sim]
      cmd: |
        test -e state || cp $(sim.workspace)/$(MERLIN_SAMPLE_PATH)/x.txt state
        while test -e $(SPECROOT)/gate; do sleep 0.05; done
        echo '{"y": '$(cat state)'}' > out.json
  - name: collect
    run: {depends: [post], aggregate: {samples_per_shard: 4, fields: {y: {file: out.json, key: y}}}}
  - name: report
    run: {depends: [collect], cmd: "ls $(collect.workspace) > list"}
merlin:
  samples: {column_labels: [X], file: $(SPECROOT)/s.csv}
"""


class Home(UserHome):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write(1, SPEC)

    def write(self, factor: int, text: str) -> None:
        rows = "".join(f"{x * factor}\n" for x in range(1, 9))
        (self.folder / "s.csv").write_text(f"X\n{rows}")
        (self.folder / "begun.yaml").write_text(text)

    def run(self, *more: str | Path, code: int | None = 0) -> Path:
        return Path(self.ask("run", "begun.yaml", "--local", "--workers", "2", *more, code=code)["workspace"])

    def cut_off(self, when: Callable[[], bool], *words: str | Path) -> None:
        """Run a command, and end it as Ctrl-C does while its tasks of `post` wait."""
        (self.folder / "gate").touch()
        process = self.start(*words, "--local", "--workers", "2")
        wait_until(when, process)
        process.terminate()
        assert process.wait(100) == 130
        (self.folder / "gate").unlink()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def rows(study: Path) -> list[float]:
    with merlin.open_shards(study / "collect") as ens:
        return list(np.asarray(ens["y"][:]).tolist())


def states(study: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in study.glob("post/*/state")}


@pytest.mark.parametrize(("factor", "text"), [(100, SPEC), (1, SPEC.replace("$(X)0", "$(X)00"))])
def test_a_task_that_was_cut_off_goes_on_from_no_checkpoint_of_another_input(
    home: Home, factor: int, text: str
) -> None:
    home.cut_off(lambda: len(list(home.folder.glob("begun_*/post/*/state"))) == 2, "run", "begun.yaml")
    (study,) = home.folder.glob("begun_*")
    before = states(study)
    home.write(factor, text)
    home.run("--update", study, "--yes")
    assert rows(study) == [x * (1000 if factor > 1 else 100) for x in range(1, 9)]
    home.merlin("history", study, "--undo")
    assert states(study) == before
    home.write(1, SPEC)
    home.ask("restart", study, "--local")
    assert rows(study) == [x * 10 for x in range(1, 9)]


@pytest.mark.parametrize("num", [1, 2])
@pytest.mark.parametrize("how", ["ended as before", "failed", "was mended", "was cut off"])
def test_going_back_runs_what_a_rerun_has_changed(home: Home, how: str, num: int) -> None:
    bad, code = home.folder / "bad", 1 if how == "was mended" else 0
    if how == "was mended":
        bad.touch()
    study = home.run(code=code)
    for word in ("first", "second")[:num]:
        home.write(1, SPEC.replace('cmd: "ls', f'cmd: "echo {word}; ls'))
        home.run("--update", study, "--yes", code=code)
    again = ("rerun", study, "--step", "sim", "--samples", "3", "--yes")
    if how == "was mended":
        bad.unlink()
        home.ask("restart", study, "--local", "--failed")
    elif how == "was cut off":
        home.cut_off(lambda: bool(list(study.glob("post/*/.try1/out.json"))), *again)
    elif how == "failed":
        bad.touch()
        home.ask(*again, "--local", code=1)
        bad.unlink()
    else:
        home.ask(*again, "--local")
    for _ in range(num):
        home.merlin("history", study, "--undo")
    assert bool(home.ask("status", study)["totals"]["missing"]) == (how != "ended as before")
    home.ask("restart", study, "--local")
    assert rows(study) == [x * 10 for x in range(1, 9)]
    home.merlin("shards", "verify", study)
    assert home.ask("status", study)["state"] == "finished"
