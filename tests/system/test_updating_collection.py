"""What a data set takes from the outputs of scripts is edited: outputs are collected again, and no script runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from servers import RedisServer
from user_home import UserHome
from waiting import wait_until

# samples 0-5 write "low", and 6-11 write "high"; all write "x"
SPEC = """
description: {name: again, description: a study whose outputs are collected again}
study:
  - name: simulate
    run:
      cmd: |
        echo simulate >> $(SPECROOT)/ran
        test $(MERLIN_SAMPLE_ID) -lt 6 && name=low || name=high
        echo '{"x": $(X), "'$name'": $(X)}' > out.json
  - name: post
    run: {depends: [simulate], cmd: echo post $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran}
  - name: collect
    run:
      depends: [simulate]
      aggregate: {samples_per_shard: 5, fields: {x: {file: out.json, key: x}}}
merlin:
  samples: {column_labels: [X], generate: {method: grid, num: 12, bounds: {X: [0, 11]}}}
  resources: {workers: {all: {steps: [all], args: "--concurrency 2"}}}
"""


class Home(UserHome):
    def __init__(self, folder: Path, broker: str = "") -> None:
        super().__init__(folder, **({"MERLIN_BROKER_URL": broker} if broker else {}))

    def write(self, key: str) -> None:
        (self.folder / "again.yaml").write_text(SPEC.replace("key: x", f"key: {key}"))
        (self.folder / "ran").write_text("")

    def new(self) -> Path:
        """Run the spec as it is, in a new workspace."""
        assert self.merlin("run", "again.yaml", code=None).returncode in (0, 1)
        return max(self.folder.glob("again_*"))

    def wait(self, study: Path) -> None:
        """Until workers have ended all."""
        wait_until(lambda: self.ask("status", study)["totals"]["missing"] == 0)

    def ran(self) -> dict[str, int]:
        lines = [line.split()[0] for line in (self.folder / "ran").read_text().splitlines()]
        return {step: lines.count(step) for step in sorted(set(lines))}


def content(study: Path) -> str:
    return str(json.loads((study / "collect/manifest.json").read_text())["content_digest"])


def outcomes(home: Home, study: Path) -> dict[str, tuple[int, int, int]]:
    """By step: ok, failed, skipped."""
    steps = home.ask("status", study)["steps"]
    return {step["step"]: (step["ok"], step["failed"], step["skipped"]) for step in steps}


def anew(tmp_path: Path, key: str) -> tuple[str, dict[str, tuple[int, int, int]]]:
    """What a run of the spec makes that nothing was before."""
    home = Home(tmp_path / f"anew_{key}")
    home.write(key)
    study = home.new()
    return content(study), outcomes(home, study)


def test_a_mended_key_finds_what_the_scripts_have_left(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write("low")
    study = home.new()
    assert outcomes(home, study)["simulate"] == (6, 6, 0)
    home.write("x")
    (line, *_) = home.ask("plan", "again.yaml", "--update", study)["steps"]
    assert (line["step"], line["to_run"], line["collected"]) == ("simulate", 0, 12)
    home.merlin("run", "again.yaml", "--update", study, "--yes")
    assert home.ran() == {"post": 6}  # of the samples whose outputs could not be collected
    assert (content(study), outcomes(home, study)) == anew(tmp_path, "x")
    home.merlin("shards", "verify", study)


def test_a_field_that_only_some_outputs_have_fails_the_others_as_in_a_new_run(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write("x")
    study = home.new()
    home.write("high")
    home.merlin("run", "again.yaml", "--update", study, "--yes", code=1)
    assert home.ran() == {}
    digest, _ = anew(tmp_path, "high")
    assert content(study) == digest and outcomes(home, study)["simulate"] == (6, 6, 0)
    home.merlin("shards", "verify", study)

    home.merlin("restart", study, "--failed", code=1)  # now somebody wants the scripts to run
    assert home.ran() == {"simulate": 6}
    home.merlin("history", study, "--undo")
    assert content(study) == anew(tmp_path, "x")[0]
    assert outcomes(home, study)["simulate"] == (12, 0, 0)


def test_workers_collect_again(tmp_path: Path, any_redis: RedisServer) -> None:
    home = Home(tmp_path / "home", any_redis.url)
    home.write("low")
    study = Path(home.ask("run", "again.yaml")["workspace"])
    home.merlin("run-workers", "again.yaml")
    try:
        home.wait(study)
        home.write("x")
        home.merlin("run", "again.yaml", "--update", study, "--yes")
        home.wait(study)
    finally:
        home.merlin("stop-workers", "--now", "--wait", "100")
    assert home.ran() == {"post": 6}
    assert (content(study), outcomes(home, study)) == anew(tmp_path, "x")


@pytest.mark.parametrize("key", ["low", "high"])
def test_one_wrong_key_after_another(tmp_path: Path, key: str) -> None:
    home = Home(tmp_path / "home")
    home.write("low" if key == "high" else "high")
    study = home.new()
    home.write(key)
    home.merlin("run", "again.yaml", "--update", study, "--yes", code=1)
    assert content(study) == anew(tmp_path, key)[0]
    assert home.ran() == {"post": 6}
