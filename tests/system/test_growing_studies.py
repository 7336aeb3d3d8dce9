"""A finished study gets more samples: real commands, kill -9 in the middle, and workers."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import WarmCommand
from live_processes import processes_inside
from servers import RedisServer
from user_home import UserHome
from waiting import wait_until

import merlin

SPEC = """
description: {name: grow, description: a study that grows}
env: {variables: {N: 10, BAD: -1, GATE: -1}}
study:
  - name: mesh
    run: {cmd: "echo mesh >> $(SPECROOT)/made; echo 2 > factor"}
  - name: simulate
    run:
      depends: [mesh]
      cmd: |
        echo $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran
        test $(MERLIN_SAMPLE_ID) != $(BAD) || test -e $(SPECROOT)/mended || exit 1
        test $(MERLIN_SAMPLE_ID) != 17 -o ! -e $(SPECROOT)/gate || sleep 600
        echo '{"y": $(X), "id": $(MERLIN_SAMPLE_ID), "factor": '$(cat $(mesh.workspace)/factor)'}' > out.json
  - name: draw
    run: {function: "model:draw"}
  - name: collect
    run:
      depends: [simulate_*]
      aggregate:
        from: simulate
        samples_per_shard: 5
        fields:
          y: {file: out.json, key: y}
          id: {file: out.json, key: id, dtype: int64}
          factor: {file: out.json, key: factor, dtype: int64}
  - name: random
    run: {depends: [draw], aggregate: {samples_per_shard: 5, fields: {value: {}, id: {dtype: int64}}}}
  - name: report
    run:
      depends: [collect]
      cmd: grep -c '"file"' $(collect.workspace)/manifest.json > lines
merlin:
  samples:
    generate: {method: sobol, num: $(N), bounds: {X: [0, 1], Y: [2, 3]}, seed: 7}
    column_labels: [X, Y]
"""
MODEL = """
import numpy as np
def draw(inputs, context):
    return {"value": np.array([g.random() for g in context.generators()]), "id": context.sample_ids}
"""


class Home(UserHome):
    """A user with a working directory, a spec and perhaps a broker."""

    def __init__(self, folder: Path, **env: str) -> None:
        super().__init__(folder, **env)
        (folder / "grow.yaml").write_text(SPEC)
        (folder / "model.py").write_text(MODEL)

    def run(self, num: int, *more: str) -> Path:
        return Path(self.ask("run", "grow.yaml", "--local", "--vars", f"N={num}", *more)["workspace"])

    def extend(self, study: Path, num: int, *more: str, code: int = 0) -> Any:
        return self.ask(
            "run", "grow.yaml", "--local", "--extend", study, "--vars", f"N={num}", *more, code=code
        )

    def kill(self, run: WarmCommand) -> None:
        """SIGKILL it, and wait for the end of what it leaves behind, so that nothing of it runs on later."""
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=120)
        wait_until(lambda: not processes_inside(self.folder), lambda: processes_inside(self.folder))

    def ran(self) -> list[int]:
        return sorted(int(line) for line in (self.folder / "ran").read_text().split())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def digests_of(study: Path, name: str = "collect") -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((study / name).glob("shard_*"))
    }


def split_of(study: Path) -> dict[int, str]:
    with merlin.open_shards(study / "collect") as ens:
        return {int(ens.sample_id[row]): name for name, rows in ens.splits.items() for row in rows}


def test_a_study_that_grows_twice_is_the_study_made_at_once(home: Home, tmp_path: Path) -> None:
    study = home.run(10)
    before, splits = digests_of(study), split_of(study)
    for num in (20, 25):
        files = sorted(study.rglob("*"))
        words = ("plan", "grow.yaml", "--extend", study, "--vars", f"N={num}")
        preview = home.ask(*words)["forecast"]
        added = {20: (10, 4), 25: (5, 2)}[num]  # samples, and shards of two data sets
        assert (preview["num_samples"], preview["num_shards"]) == added
        assert (
            f"samples {num - preview['num_samples']} to {num - 1} of the study" in home.merlin(*words).stdout
        )
        assert sorted(study.rglob("*")) == files
        report = home.extend(study, num)
        assert report["workspace"] == str(study / f"extensions/00{num // 10 - (num == 20)}")
        home.merlin("shards", "verify", study / "collect")
        home.merlin("shards", "verify", study / "random")
    assert {name: digest for name, digest in digests_of(study).items() if name in before} == before
    assert home.ran() == list(range(25))
    assert (home.folder / "made").read_text() == "mesh\n"
    assert {id: name for id, name in split_of(study).items() if id < 10} == splits
    lines = [
        int((path / "report/lines").read_text()) for path in (study, *sorted(study.glob("extensions/*")))
    ]
    assert lines == [3, 5, 6]  # the shards and ensemble.h5, as the data set was then

    (tmp_path / "whole").mkdir()
    whole = Home(tmp_path / "whole").run(25)
    for name in ("collect", "random"):
        with merlin.open_shards(study / name) as ours, merlin.open_shards(whole / name) as theirs:
            assert ours.manifest.content_digest == theirs.manifest.content_digest
            assert ours.manifest.counts == theirs.manifest.counts
            assert np.array_equal(ours["id"][:], np.arange(25))


def test_commands_show_a_study_with_its_extensions(home: Home) -> None:
    study = home.run(10)
    words = ("run", "grow.yaml", "--local", "--extend", study, "--vars", "N=20", "BAD=13")
    refused = home.merlin(*words, code=2).stderr
    assert "- test $(MERLIN_SAMPLE_ID) != -1 " in refused and "+ test $(MERLIN_SAMPLE_ID) != 13 " in refused
    home.merlin("run", "grow.yaml", "--local", "--vars", "N=10", "BAD=13", "OUTPUT_PATH=./bad")
    (study,) = (home.folder / "bad").iterdir()
    home.extend(study, 20, "BAD=13", "OUTPUT_PATH=./bad", code=1)
    status = home.ask("status", study)
    assert (status["state"], [e["state"] for e in status["extensions"]]) == ("finished", ["failed"])
    assert "extensions/001  failed" in home.merlin("status", study).stdout
    (group,) = home.ask("failures", study)
    assert (group["extension"], group["examples"][0]["sample_id"]) == ("extensions/001", 13)
    answer = home.ask("sql", study, "select sample_id, extension from tasks where outcome = 'failed'")
    assert answer == [{"sample_id": 13, "extension": 1}]
    assert home.ask("sql", study, "select count(*) n, max(sample_id) m from samples") == [{"n": 20, "m": 19}]
    rows = home.ask("detailed-status", study, "--task-status", "FAILED")
    assert [(row["sample_id"], row["workspace"]) for row in rows] == [(13, "extensions/001/simulate/03")]
    rows = home.ask("detailed-status", study, "--steps", "mesh")
    assert [row["workspace"] for row in rows] == ["mesh"]

    (home.folder / "mended").touch()
    home.merlin("restart", study, "--local", "--failed")
    assert home.ask("failures", study) == []
    home.merlin("shards", "verify", study / "collect")
    assert home.ran().count(13) == 2 and home.ran().count(3) == 2  # once in each of the two studies


def test_nothing_to_add_and_too_few_are_told_apart(home: Home) -> None:
    study = home.run(10)
    assert home.extend(study, 10)["new_samples"] == 0
    assert (
        "nothing to add"
        in home.merlin("run", "grow.yaml", "--local", "--extend", study, "--vars", "N=10").stdout
    )
    assert "nothing to add" in home.merlin("plan", "grow.yaml", "--extend", study, "--vars", "N=10").stdout
    few = home.merlin("run", "grow.yaml", "--local", "--extend", study, "--vars", "N=9", code=2)
    assert "the study has 10 samples" in few.stderr
    assert not (study / "extensions").exists()


def test_kill_9_leaves_the_old_data_set_and_restart_ends_the_extension(home: Home) -> None:
    study = home.run(10)
    before = digests_of(study)
    (home.folder / "gate").touch()
    run = home.start("run", "grow.yaml", "--local", "--workers", "2", "--extend", study, "--vars", "N=20")
    wait_until(lambda: 17 in home.ran() and (study / "collect/shard_00002.h5").exists(), run)
    refused = home.merlin("run", "grow.yaml", "--local", "--extend", study, "--vars", "N=30", code=1)
    assert f"{study}/extensions/001 runs" in refused.stderr
    home.kill(run)
    home.merlin("shards", "verify", study / "collect")
    with merlin.open_shards(study / "collect") as ens:
        assert len(ens) == 10
    (home.folder / "gate").unlink()
    told = home.merlin("run", "grow.yaml", "--local", "--extend", study, "--vars", "N=20", code=1)
    assert (
        f"report would work on a data set that is not finished; first: merlin restart {study}" in told.stderr
    )
    old = home.ran()
    home.merlin("restart", study, "--local")
    home.merlin("shards", "verify", study / "collect")
    with merlin.open_shards(study / "collect") as ens:
        assert np.array_equal(ens["id"][:], np.arange(20))
    after = digests_of(study)
    assert {name: after[name] for name in before} == before
    assert [home.ran().count(id) for id in range(10)] == [1] * 10
    assert len(home.ran()) - len(old) <= 10


def test_a_study_that_was_stopped_grows_and_is_finished_later(home: Home) -> None:
    spec = home.folder / "grow.yaml"
    spec.write_text(re.sub(r"  - name: report.*?(?=merlin:)", "", SPEC, flags=re.DOTALL))
    (home.folder / "gate").touch()
    run = home.start("run", "grow.yaml", "--local", "--workers", "2", "--vars", "N=20")
    wait_until(lambda: (home.folder / "ran").exists() and 17 in home.ran(), run)
    home.kill(run)
    (home.folder / "gate").unlink()
    (study,) = home.folder.glob("grow_*")
    words = ("run", "grow.yaml", "--local", "--extend", study, "--vars")
    assert f"merlin restart {study}" in home.merlin(*words, "N=25").stderr
    assert "nothing to add" in home.merlin(*words, "N=25", code=1).stdout
    assert not (study / "collect/manifest.json").exists()
    home.merlin("restart", study, "--local")
    with merlin.open_shards(study / "collect") as ens:
        assert np.array_equal(ens["id"][:], np.arange(25))
    home.merlin("shards", "verify", study / "collect")
    home.merlin("restart", study, "--local")  # nothing is left
    assert [home.ran().count(id) for id in range(20, 25)] == [1] * 5


def test_a_grown_data_set_is_described_queried_and_repaired(home: Home) -> None:
    study = home.run(10)
    home.extend(study, 20)
    data = study / "collect"
    home.merlin("shards", "describe", data)
    answer = home.ask("shards", "query", data, "id >= 8 and id < 12")
    assert "11" in json.dumps(answer)
    before = json.loads((data / "manifest.json").read_text())["content_digest"]
    (data / "shard_00003.h5").unlink()
    (data / "shard_00003.json").unlink()
    for task in range(5, 10):  # of the extension: its files are gone as well
        shutil.rmtree(study / f"extensions/001/simulate/{task:02d}")
    home.merlin("shards", "verify", data, code=1)
    old = home.ran()
    home.merlin("shards", "verify", data, "--repair")
    home.merlin("shards", "verify", data)
    assert json.loads((data / "manifest.json").read_text())["content_digest"] == before
    assert sorted(set(range(15, 20)) | set(old)) == sorted(set(home.ran()))
    assert [home.ran().count(id) for id in (3, 12, 15, 19)] == [1, 1, 2, 2]


def test_samples_from_a_file_alone(home: Home) -> None:
    rows = np.arange(24.0).reshape(12, 2)
    np.save(home.folder / "ten.npy", rows[:10])
    np.save(home.folder / "two.npy", rows[10:])
    study = Path(home.ask("run", "grow.yaml", "--local", "--samplesfile", "ten.npy")["workspace"])
    home.merlin("run", "grow.yaml", "--local", "--extend", study, "--samplesfile", "two.npy", "--new-rows")
    with merlin.open_shards(study / "collect") as ens:
        assert np.array_equal(ens.inputs.array(), rows)
        assert np.array_equal(ens["id"][:], np.arange(12))


# ------------------------------------------------------------------ on workers


@pytest.fixture
def on_workers(tmp_path: Path, any_redis: RedisServer) -> Iterator[Home]:
    home = Home(tmp_path, MERLIN_BROKER_URL=any_redis.url)
    yield home
    home.merlin("stop-workers", "--now", "--wait", "100", code=None)


@pytest.mark.slow
def test_workers_run_an_extension(on_workers: Home) -> None:
    home = on_workers
    study = home.run(10)
    published = home.ask("run", "grow.yaml", "--extend", study, "--vars", "N=20")
    assert published["workspace"] == f"{study}/extensions/001"
    refused = home.merlin("run", "grow.yaml", "--extend", study, "--vars", "N=30", code=1)
    assert "is published for workers" in refused.stderr
    assert home.ask("status", study)["extensions"][0]["state"] == "stalled"
    home.merlin("run-workers", "grow.yaml")
    report = home.ask("monitor", study, "--sleep", "0.2")
    assert report["workspace"] == f"{study}/extensions/001" and report["missing"] == 0
    home.merlin("shards", "verify", study / "collect")
    with merlin.open_shards(study / "random") as ens:
        assert np.array_equal(ens["id"][:], np.arange(20))
    assert home.ran() == list(range(20))
