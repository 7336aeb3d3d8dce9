"""Steps that copy the directory of the step before, with its finish mark, as is usual in CFD.

Whatever happens to such a task, what it had written before it was killed or failed is not in the data set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import WarmCommand, run_merlin
from installation import installation
from servers import RedisServer
from waiting import wait_until

import merlin

SPEC = """
description: {name: marks, description: a step that copies the directory of the one before}
env: {variables: {OUTPUT_PATH: ., N: 4}}
study:
  - name: mesh
    run: {cmd: echo $(MERLIN_SAMPLE_ID) > mesh.txt}
  - name: simulate
    run:
      depends: [mesh]
      crash_limit: 1000
      cmd: |
        cp -r $(mesh.workspace)/$(MERLIN_SAMPLE_PATH)/. .
        echo '{"y": -1}' > out.json
        echo $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/begun
        while [ -e $(SPECROOT)/hold ]; do sleep 0.1; done
        [ ! -e $(SPECROOT)/broken ] || exit 1
        echo '{"y": $(MERLIN_SAMPLE_ID)}' > out.json
  - name: collect
    run:
      depends: [simulate_*]
      aggregate: {from: simulate, fields: {y: {file: out.json, key: y}}}
merlin:
  samples:
    generate: {method: uniform, num: $(N), bounds: {X: [0, 1]}}
    column_labels: [X]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "marks.yaml"
    path.write_text(SPEC)
    return path


def workspace_of(spec: Path) -> Path:
    (workspace,) = (path.parent for path in spec.parent.glob("marks_*/merlin_info"))
    return workspace


def num_begun(spec: Path) -> int:
    path = spec.parent / "begun"
    return len(path.read_text().split()) if path.exists() else 0


def has_copied_a_mark(spec: Path) -> bool:
    return any(workspace_of(spec).glob("**/simulate/*/MERLIN_FINISHED"))


def values(spec: Path) -> list[float]:
    with merlin.open_shards(workspace_of(spec) / "collect") as ens:
        return list(ens["y"][:].tolist())


def killed_while_held(spec: Path, *words: str | Path) -> None:
    """Run a command until its tasks hang behind what they have copied; then kill it and all its workers."""
    (spec.parent / "hold").touch()
    before = num_begun(spec)
    run = WarmCommand("merlin", [*words, "--local"], cwd=spec.parent)
    wait_until(lambda: num_begun(spec) > before and has_copied_a_mark(spec), run)
    run.kill()
    run.wait()
    (spec.parent / "hold").unlink()


def local(spec: Path, *words: str | Path, code: int = 0) -> None:
    done = run_merlin(*words, "--local", cwd=spec.parent)
    assert done.returncode == code, done.stdout + done.stderr


def after_a_kill(spec: Path) -> None:
    killed_while_held(spec, "run", spec)
    local(spec, "restart", workspace_of(spec))


def after_failures(spec: Path) -> None:
    (spec.parent / "broken").touch()
    local(spec, "run", spec, code=1)
    (spec.parent / "broken").unlink()
    local(spec, "restart", workspace_of(spec), "--failed")


def in_an_extension(spec: Path) -> None:
    local(spec, "run", spec, "--vars", "N=2")
    killed_while_held(spec, "run", spec, "--extend", workspace_of(spec))
    local(spec, "restart", workspace_of(spec))


@pytest.mark.parametrize("story", [after_a_kill, after_failures, in_an_extension])
def test_a_copied_mark_does_not_make_a_task_ok(spec: Path, story: Callable[[Path], None]) -> None:
    story(spec)
    assert values(spec) == [0, 1, 2, 3]
    local_verify = run_merlin("shards", "verify", workspace_of(spec))
    assert local_verify.returncode == 0, local_verify.stdout


@pytest.mark.slow
def test_a_worker_that_takes_over_does_not_believe_a_copied_mark(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    with installation(tmp_path, own_redis) as home:
        (home.folder / "hold").touch()
        path = home.folder / "marks.yaml"
        path.write_text(SPEC)
        home.merlin("run", path)
        home.replace_workers(path, 1)
        wait_until(lambda: num_begun(path) > 0 and has_copied_a_mark(path), home.describe)
        home.workers.pop().kill(whole=True)
        (home.folder / "hold").unlink()
        home.replace_workers(path, 1)
        wait_until(lambda: (workspace_of(path) / "collect/manifest.json").exists(), home.describe)
        assert values(path) == [0, 1, 2, 3]
        home.stop_workers()


CHANGED = """
description: {name: marks, description: a data set that is not finished when its samples run again}
study:
  - name: mesh
    run: {cmd: '[ -e $(SPECROOT)/fixed ] || exit $(MERLIN_SOFT_FAIL) # $(MERLIN_SAMPLE_ID)'}
  - name: simulate
    run:
      depends: [mesh]
      retry_delay: 0
      cmd: |
        echo '{"y": 1}' > out.json
        [ ! -e $(SPECROOT)/fixed ] || exit 0
        echo '{"y": 666}' > out.json
        [ -e seen ] || { touch seen; exit $(MERLIN_RETRY); }
        # $(MERLIN_SAMPLE_ID)
  - name: slow
    run: {depends: [simulate_*], cmd: '[ -e $(SPECROOT)/fixed ] || exit $(MERLIN_HARD_FAIL)'}
  - name: collect
    run:
      depends: [simulate_*, slow_*]
      aggregate: {from: simulate, fields: {y: {file: out.json, key: y}}}
merlin:
  samples:
    generate: {method: uniform, num: 3, bounds: {X: [0, 1]}}
    column_labels: [X]
"""


def test_what_a_later_run_has_made_is_in_the_data_set_whatever_was_collected_before(tmp_path: Path) -> None:
    spec = tmp_path / "marks.yaml"
    spec.write_text(CHANGED)
    local(spec, "run", spec, code=1)
    (tmp_path / "fixed").touch()
    local(spec, "restart", workspace_of(spec), "--failed")
    assert values(spec) == [1, 1, 1]
