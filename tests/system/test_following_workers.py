"""A study on workers as the dashboard follows it: what it is called before, while and after somebody works on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import run_merlin
from live_processes import processes_inside
from servers import RedisServer
from waiting import wait_until

from merlin.views.study_page import StudyPage, StudyView

SPEC = """
description: {name: gated, description: its tasks wait for a file}
study:
  - name: sim
    run: {cmd: "echo $(X); until test -e $(SPECROOT)/go; do sleep 0.05; done", task_queue: gate}
merlin:
  samples: {generate: {method: sobol, num: 6, bounds: {X: [0, 1]}}, column_labels: [X]}
"""


@pytest.fixture
def folder(tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the spec; this process has the same broker. No worker of it is left at the end."""
    (tmp_path / "gated.yaml").write_text(SPEC)
    for name in [name for name in os.environ if name.startswith("MERLIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MERLIN_BROKER_URL", own_redis.url)
    yield tmp_path
    run_merlin("stop-workers", "--now", "--wait", "60", cwd=tmp_path)
    wait_until(
        lambda: not [line for line in processes_inside(tmp_path) if "redis-server" not in line],
        lambda: processes_inside(tmp_path),
    )


def test_a_study_on_workers_is_called_running_only_while_somebody_works(
    folder: Path, own_redis: RedisServer
) -> None:
    done = run_merlin("run", "gated.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    study = Path(json.loads(done.stdout)["workspace"])
    view = StudyView(study)

    def seen(state: str) -> StudyPage | None:
        page = view.look()
        assert page.totals.planned == 6
        return page if page.state == state and (page.obstacles or state in ("running", "finished")) else None

    page = wait_until(lambda: seen("stalled"), view.look)
    assert [obstacle.remedy for obstacle in page.obstacles] == [f"merlin run-workers {study}"]
    assert [(queue.name, queue.depth, queue.num_workers) for queue in page.queues] == [("gate", 1, 0)]
    assert page.queues[0].oldest_s is not None
    assert (page.executor, page.owner, page.workers, page.eta) == ("workers", "", (), None)
    assert page.description == "its tasks wait for a file"

    assert run_merlin("run-workers", "gated.yaml", cwd=folder).returncode == 0
    page = wait_until(lambda: seen("running"), view.look)
    page = wait_until(
        lambda: next((p for p in [view.look()] if p.owner and any(w.running for w in p.workers)), None),
        view.look,
    )
    (worker,) = page.workers
    assert worker.name == page.owner
    assert {chunk.step for chunk in worker.running} == {"sim"}
    assert page.totals.running > 0

    own_redis.stop()
    page = wait_until(lambda: seen("unknown"), view.look)
    assert own_redis.url.rpartition("@")[2].partition("/")[0] in page.state_reason
    own_redis.start_again()
    (folder / "go").touch()
    page = wait_until(lambda: seen("finished"), view.look)
    assert (page.totals.ok, page.obstacles) == (6, ())
