"""What an action of a page runs, and what becomes of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_client import BEARER
from ended_study import FAILED, OK, end_study, make_study
from starlette.testclient import TestClient
from waiting import wait_until

from merlin.base.processes import read_process
from merlin.dashboard import actions
from merlin.dashboard.actions import act, words_of
from merlin.errors import ExecutionError, UsageError
from merlin.workspace.directory import Workspace


@pytest.fixture
def study(tmp_path: Path) -> Workspace:
    study = make_study(tmp_path / "one_20260101-000000")
    end_study(study, [OK] * 19 + [FAILED])
    return study


@pytest.fixture
def in_place_of_merlin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Commands run a script of Python, in a process all the same."""

    def replace(script: str) -> None:
        monkeypatch.setattr(actions, "MERLIN", (sys.executable, "-c", script))

    return replace


def test_each_action_is_the_command_that_a_user_would_type(study: Workspace) -> None:
    path = str(study.path)
    assert words_of("cancel", study.path, ["sim"]) == ["cancel", path, "--step", "sim"]
    assert words_of("cancel", study.path, []) == ["cancel", path]
    assert words_of("rerun-failed", study.path, []) == ["restart", path, "--failed"]
    assert words_of("stop-workers", study.path, []) == ["stop-workers", "--spec", path]
    assert words_of("submit", study.path, ["sim"]) == ["workers", "submit", path, "--steps", "sim"]


@pytest.mark.parametrize("steps", [["--help"], ["sim", "nothing"], ["sim; rm -rf /"], [""]])
def test_a_step_that_the_study_does_not_have_runs_nothing(study: Workspace, steps: list[str]) -> None:
    with pytest.raises(UsageError, match="no step"):
        words_of("cancel", study.path, steps)


def test_an_action_that_does_not_exist_runs_nothing(study: Workspace) -> None:
    for name in ("delete", "", "../cancel"):
        with pytest.raises(UsageError, match="no action"):
            words_of(name, study.path, [])
    with pytest.raises(UsageError, match="name none"):
        words_of("stop-workers", study.path, ["sim"])


def test_the_output_of_an_action_is_shown_and_kept(
    study: Workspace, in_place_of_merlin: Callable[[str], None]
) -> None:
    in_place_of_merlin("import sys; print('told', sys.argv[1:])")
    done = act("cancel", study.path, ["sim"])
    assert (done.exit_code, done.command) == (0, f"merlin cancel {study.path} --step sim")
    assert done.output == f"told ['cancel', '{study.path}', '--step', 'sim']"
    assert Path(done.log).read_text().strip() == done.output
    assert Path(done.log).parent == study.info / "actions"


def test_a_command_that_fails_is_an_error_with_what_it_said(
    study: Workspace, in_place_of_merlin: Callable[[str], None]
) -> None:
    in_place_of_merlin("import sys; print('no broker', file=sys.stderr); sys.exit(3)")
    with pytest.raises(ExecutionError, match=r"merlin cancel .* ended with exit code 3: no broker"):
        act("cancel", study.path, [])


def test_a_command_that_takes_long_goes_on_and_leaves_no_dead_process(
    study: Workspace, in_place_of_merlin: Callable[[str], None], tmp_path: Path
) -> None:
    in_place_of_merlin(
        "import os, time, pathlib\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / 'pid').write_text(str(os.getpid())); print('half', flush=True)\n"
        "while not (here / 'go').exists(): time.sleep(0.01)\n"
        "print('whole')"
    )
    done = act("rerun-failed", study.path, [], wait_s=0.01)
    assert done.exit_code is None and "goes on by itself" in done.done
    pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    (tmp_path / "go").touch()
    wait_until(lambda: Path(done.log).read_text() == "half\nwhole\n")
    wait_until(lambda: read_process(int(pid)) is None and not Path(f"/proc/{pid}").exists())


def test_what_an_action_starts_is_as_urgent_as_what_a_user_starts(
    study: Workspace, connect: Callable[..., TestClient], in_place_of_merlin: Callable[[str], None]
) -> None:
    in_place_of_merlin("import os; print('niceness', os.nice(0))")
    answer = connect(allows_actions=True).post(
        f"/api/study/{study.path.name}/actions/rerun-failed", headers=BEARER, json={}
    )
    assert answer.json()["output"] == f"niceness {os.nice(0)}"


def test_a_page_can_act_on_studies_that_are_shown_and_on_no_others(
    study: Workspace, connect: Callable[..., TestClient], in_place_of_merlin: Callable[[str], None]
) -> None:
    in_place_of_merlin("print('done')")
    client = connect(allows_actions=True)
    below = f"/api/study/{study.path.name}/actions"

    def post(address: str, **body: object) -> int:
        return client.post(address, headers=BEARER, **body).status_code  # type: ignore[arg-type]

    assert post(f"{below}/cancel", json={"steps": ["sim"]}) == 202
    assert post(f"{below}/cancel") == 202
    assert post(f"{below}/delete", json={}) == 400
    assert post(f"{below}/cancel", json={"steps": "sim"}) == 400
    assert post(f"{below}/cancel", json=[1]) == 400
    assert post(f"{below}/cancel", content=b"{" * 100) == 400
    assert post(f"{below}/cancel", content=b" " * 100_000) == 413
    assert post("/api/study/other_20260101-000000/actions/cancel", json={}) == 404
    assert post("/api/study/..%2F..%2Fetc/actions/cancel", json={}) in (404, 405)
