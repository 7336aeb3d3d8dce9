"""The spec of a study is edited while workers run it: what they do is ended, and no task mixes two revisions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_processes import processes_inside
from servers import RedisServer
from user_home import UserHome
from waiting import wait_until

import merlin

SPEC = """
description: {name: edited, description: a study that is edited while it runs}
study:
  - name: simulate
    run:
      max_retries: 2
      cmd: |
        echo "$(X) first SCALE" >> $(SPECROOT)/ran
        while test -e $(SPECROOT)/gate; do sleep 0.05; done
        echo '{"y": $(X), "scale": SCALE}' > out.json
  - name: collect
    run:
      depends: [simulate]
      aggregate: {samples_per_shard: 4, fields: {y: {file: out.json, key: y}, scale: {file: out.json, key: scale}}}
merlin:
  samples: {column_labels: [X], generate: {method: grid, num: 12, bounds: {X: [0, 11]}}}
  resources: {workers: {all: {steps: [all], args: "--concurrency 2"}}}
"""


class Home(UserHome):
    def __init__(self, folder: Path, redis: RedisServer) -> None:
        super().__init__(folder, MERLIN_BROKER_URL=redis.url, MERLIN_LEASE_S="4")
        self.write("1")

    def write(self, scale: str, **more: str) -> None:
        text = SPEC.replace("SCALE", scale)
        for old, new in more.items():
            text = text.replace(old, new)
        (self.folder / "edited.yaml").write_text(text)

    def ended(self, study: Path) -> Any:
        """What the study says of itself once nothing of it is missing."""
        return wait_until(lambda: (s := self.ask("status", study))["totals"]["missing"] == 0 and s)


@pytest.fixture
def home(tmp_path: Path, any_redis: RedisServer) -> Iterator[Home]:
    made = Home(tmp_path, any_redis)
    yield made
    (tmp_path / "gate").unlink(missing_ok=True)
    made.merlin("stop-workers", "--now", "--wait", "100", code=None)
    wait_until(lambda: not processes_inside(tmp_path), lambda: processes_inside(tmp_path))


def scales(study: Path) -> set[float]:
    with merlin.open_shards(study / "collect") as ens:
        assert np.asarray(ens["y"][:]).tolist() == list(range(12))
        return set(np.asarray(ens["scale"][:]).tolist())


def rows(study: Path) -> list[float]:
    with merlin.open_shards(study / "collect") as ens:
        return list(np.asarray(ens["scale"][:]).tolist())


def test_a_study_is_edited_while_its_workers_run_it(home: Home) -> None:
    (home.folder / "gate").touch()
    study = Path(home.ask("run", "edited.yaml")["workspace"])
    home.merlin("run-workers", "edited.yaml")
    wait_until((home.folder / "ran").exists)
    home.write("2")
    home.merlin("run", "edited.yaml", "--update", study, "--yes")
    (home.folder / "gate").unlink()
    assert home.ended(study)["totals"]["failed"] == 0
    assert scales(study) == {2}
    notes = home.ask("history", study)["revisions"]
    assert [note["is_current"] for note in notes] == [False, True]


def test_a_finished_study_of_workers_is_edited_and_goes_back(home: Home) -> None:
    study = Path(home.ask("run", "edited.yaml")["workspace"])
    home.merlin("run-workers", "edited.yaml")
    home.ended(study)
    before = json.loads((study / "collect/manifest.json").read_text())["content_digest"]
    for scale in ("2", "3"):
        home.write(scale)
        home.merlin("run", "edited.yaml", "--update", study, "--yes")
        home.ended(study)
        assert scales(study) == {float(scale)}
    home.write("3", **{"samples_per_shard: 4": "samples_per_shard: 6"})
    home.merlin("run", "edited.yaml", "--update", study, "--yes")
    home.ended(study)
    home.merlin("shards", "verify", study)
    assert len((home.folder / "ran").read_text().splitlines()) == 36  # the last edit ran no simulation
    for _ in range(3):
        home.merlin("history", study, "--undo")
    assert json.loads((study / "collect/manifest.json").read_text())["content_digest"] == before
    home.merlin("shards", "verify", study)
    assert home.ask("status", study)["state"] == "finished"


def test_the_data_set_alone_of_a_study_of_workers_is_made_again_here(home: Home) -> None:
    study = Path(home.ask("run", "edited.yaml")["workspace"])
    home.merlin("run-workers", "edited.yaml")
    home.ended(study)
    home.write("1", **{"samples_per_shard: 4": "samples_per_shard: 6", "key: scale": "key: y"})
    home.merlin("shards", "collect", study, "--spec", "edited.yaml")
    assert rows(study) == list(range(12))
    assert len((home.folder / "ran").read_text().splitlines()) == 12
    home.merlin("shards", "verify", study)


def test_going_back_ends_what_workers_run(home: Home) -> None:
    study = Path(home.ask("run", "edited.yaml")["workspace"])
    home.merlin("run-workers", "edited.yaml")
    home.ended(study)
    (home.folder / "gate").touch()
    home.write("2")
    home.merlin("run", "edited.yaml", "--update", study, "--yes")
    wait_until(lambda: "first 2" in (home.folder / "ran").read_text())
    home.merlin("history", study, "--undo")
    began = (home.folder / "ran").read_text()
    assert began.count("first 2") < 12  # not all of them had begun
    (home.folder / "gate").unlink()
    assert home.ask("status", study)["state"] == "finished" and scales(study) == {1}
    home.write("3")
    home.merlin("run", "edited.yaml", "--update", study, "--yes")
    home.ended(study)
    assert (home.folder / "ran").read_text().count("first 2") == began.count("first 2")
    home.merlin("history", study, "--undo")
    assert {json.loads(path.read_text())["scale"] for path in study.glob("simulate/*/out.json")} == {1}


def test_more_samples_follow_what_workers_run_again(home: Home) -> None:
    sobol = {"method: grid, num: 12": "method: sobol, seed: 3, num: 12"}
    home.write("1", **sobol)
    study = Path(home.ask("run", "edited.yaml")["workspace"])
    home.merlin("run-workers", "edited.yaml")
    home.ended(study)
    home.write("2", **{"method: grid, num: 12": "method: sobol, seed: 3, num: 15"})
    words = "run", "edited.yaml", "--update", study, "--yes"
    assert "3 more samples to add: give the same command again" in home.merlin(*words).stderr
    assert home.ended(study)["totals"]["planned"] == 16  # of the 12 samples
    home.merlin(*words)
    wait_until(lambda: rows(study) == [2.0] * 15, lambda: rows(study))
    wait_until(lambda: home.ask("status", study / "extensions/001")["totals"]["missing"] == 0)
    home.merlin("shards", "verify", study)
