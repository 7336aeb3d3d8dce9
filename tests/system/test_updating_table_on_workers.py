"""The table of edits once more, on workers: the same tasks run again because of an edit, whoever runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from changing_study import SPEC, TOGETHER, Home, contents, edited_together, fresh, that_say_so
from live_processes import processes_inside
from servers import RedisServer
from waiting import wait_until

import merlin

WORKERS = '  resources: {workers: {all: {steps: [all], args: "--concurrency 2"}}}\n'


@pytest.fixture
def home(tmp_path: Path, any_redis: RedisServer) -> Iterator[Home]:
    made = Home(tmp_path / "home", any_redis.url)
    made.write(SPEC + WORKERS)
    made.ask("run-workers", "change.yaml")
    yield made
    made.say("stop-workers", "--now", "--wait", "100")
    wait_until(lambda: not processes_inside(tmp_path), lambda: processes_inside(tmp_path))


def wait(study: Path) -> Path:
    """Until workers have ended all of it."""
    found = merlin.Study(study)
    wait_until(lambda: found.status().totals.missing == 0, lambda: found.status().totals)
    return study


def test_what_edits_run_again_on_workers(home: Home) -> None:
    study = home.run()
    before = contents(wait(study))
    assert before == fresh(SPEC)
    for names in TOGETHER:
        text, expected = edited_together(names)
        home.write(text + WORKERS)
        home.run("--update", study, "--yes")
        wait(study)
        assert home.ran() == that_say_so(expected), names
        assert contents(study) == fresh(text), names
        home.ask("history", study, "--undo")
        assert contents(study) == before
