"""`merlin dashboard` as its user starts it: a real server, a study that runs, actions, TLS, and servers that hang."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from pathlib import Path

from commands import WarmProcess
from ended_study import OK, add_outcomes, end_study, make_study
from live_dashboard import events_of, live_dashboard, text_of
from servers import Authority
from waiting import wait_until

from merlin.ledger.records import EventRecord
from merlin.ledger.writer import LedgerWriter
from merlin.status.snapshot import EXECUTOR

# the first run of every third task fails; all wait for the file `go`
SPEC = """
description: {name: trial, description: some tasks fail the first time}
env: {variables: {OUTPUT_PATH: .}}
study:
  - name: attempt
    description: fails once, now and then
    run:
      cmd: |
        until test -e $(SPECROOT)/go; do sleep 0.05; done
        echo "sample $(MERLIN_SAMPLE_ID)" > result.txt
        if [ $(( $(MERLIN_SAMPLE_ID) % 3 )) -eq 0 ] && mkdir $(SPECROOT)/tried.$(MERLIN_SAMPLE_ID); then
          echo "no luck" >&2; exit 7
        fi
merlin:
  samples:
    generate: {method: uniform, num: 12, bounds: {X: [0, 1]}, seed: 1}
    column_labels: [X]
"""


def test_a_study_is_followed_from_its_first_task_to_its_last_and_its_failures_run_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "trial.yaml").write_text(SPEC)
    words = ["run", "trial.yaml", "--local", "--workers", "2"]
    with live_dashboard(tmp_path, "--root", tmp_path, "--allow-actions") as dashboard:
        assert dashboard.get("/api/studies")["studies"] == []
        with (tmp_path / "run.log").open("wb") as log:
            study = WarmProcess(
                "merlin", words, cwd=tmp_path, env=os.environ, output=log.fileno(), is_session=True
            )
        (line,) = wait_until(
            lambda: dashboard.get("/api/studies")["studies"], (tmp_path / "run.log").read_text
        )
        id, below = line["id"], f"/api/study/{line['id']}"
        events = events_of(dashboard.client, f"{below}/events")
        kind, page = next(events)
        assert (kind, page["id"], page["totals"]["planned"]) == ("study", id, 12)
        (tmp_path / "go").touch()
        pages = [page]
        for kind, value in events:
            pages += [value] if kind == "study" else []
            if pages[-1]["state"] == "failed":
                break
        assert study.wait(60) == 1
        totals = pages[-1]["totals"]
        assert (totals["ok"], totals["failed"], totals["missing"]) == (8, 4, 0)
        (group,) = dashboard.get(f"{below}/failures")["groups"]
        assert (group["exit_class"], group["count"], group["log_tail"]) == ("exit code 7", 4, "no luck")
        assert (
            dashboard.client.get(f"{below}/raw?instance=attempt&task=1&name=result.txt").text == "sample 1\n"
        )

        done = dashboard.client.post(f"{below}/actions/rerun-failed", json={"steps": ["attempt"]})
        assert done.status_code == 202, done.text
        assert done.json()["command"] == f"merlin restart {tmp_path / id} --failed --step attempt"
        assert dashboard.wait_for_state(id, "finished")["totals"]["ok"] == 12
        assert "12" in Path(done.json()["log"]).read_text()
        cancelled = dashboard.client.post(f"{below}/actions/cancel", json={})
        assert cancelled.status_code == 202, cancelled.text
        assert "nothing to cancel" in Path(cancelled.json()["log"]).read_text()
        wrong = dashboard.client.post(f"{below}/actions/rerun-failed", json={"steps": ["--help"]})
        assert wrong.status_code == 400


def test_the_address_is_printed_and_the_end_is_quick_though_browsers_listen(tmp_path: Path) -> None:
    end_study(make_study(tmp_path / "one_20260101-000000"), [OK] * 20)
    token_file = tmp_path / "home/.merlin/dashboard-token"
    home = {"HOME": str(tmp_path / "home")}
    with (
        live_dashboard(tmp_path, env=home, is_warm=False) as dashboard,
        live_dashboard(tmp_path, env=home, is_warm=False) as other,
    ):
        assert other.port != dashboard.port and other.token == dashboard.token
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert token_file.read_text().strip() == dashboard.token
        ended: list[str] = []
        heard = [threading.Event() for _ in range(2)]

        def listen(address: str, first: threading.Event) -> None:
            for _ in events_of(dashboard.client, address):
                first.set()
            ended.append(address)

        addresses = ("/api/events", "/api/study/one_20260101-000000/events")
        listeners = [
            threading.Thread(target=listen, args=pair) for pair in zip(addresses, heard, strict=True)
        ]
        for listener, first in zip(listeners, heard, strict=True):
            listener.start()
            assert first.wait(60)
        assert dashboard.end() == 0
        for listener in listeners:
            listener.join(60)
        assert sorted(ended) == sorted(addresses), "a stream was cut off in place of being ended"
        other.process.send_signal(signal.SIGINT)
        assert other.end(signal.SIGINT) in (0, -signal.SIGINT)  # the second may come when it has almost ended
        assert text_of(other.errors) == ""


def test_over_https_behind_a_sub_path_the_cookie_is_for_https_alone(
    tmp_path: Path, authority: Authority
) -> None:
    tls = ("--certfile", authority.cert, "--keyfile", authority.key, "--root-path", "/merlin")
    with live_dashboard(tmp_path, "--root", tmp_path, *tls, verify=authority.context()) as dashboard:
        assert dashboard.url.startswith(f"https://127.0.0.1:{dashboard.port}/merlin/?token=")
        answer = dashboard.client.get(dashboard.url, headers={"Authorization": ""})
        assert (answer.status_code, answer.headers["location"]) == (303, "/merlin/")
        assert "; secure" in answer.headers["set-cookie"].lower()
        assert dashboard.get("/api/session")["root"] == "/merlin/"


def test_a_redis_that_hangs_holds_up_neither_its_study_nor_any_other(tmp_path: Path) -> None:
    published = make_study(tmp_path / "published_20260102-000000")
    with LedgerWriter(
        published.ledger_dir, "owner", session="run1", study_id=published.plan.study_id
    ) as writer:
        writer.append(EventRecord(kind="run_started", data={"executor": EXECUTOR}, time=999.0))
    add_outcomes(published, 0, [OK] * 5)
    end_study(make_study(tmp_path / "one_20260101-000000"), [OK] * 20)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never says a word
        env = {"MERLIN_BROKER_URL": f"redis://127.0.0.1:{silent.getsockname()[1]}/0"}
        with live_dashboard(tmp_path, "--root", tmp_path, env=env) as dashboard:
            below = "/api/study/published_20260102-000000"
            workers = threading.Thread(target=dashboard.client.get, args=("/api/workers",), daemon=True)
            workers.start()
            page = dashboard.get(below)
            assert (page["totals"]["ok"], page["totals"]["missing"]) == (5, 15)
            assert page["state"] != "finished"
            assert dashboard.get("/api/study/one_20260101-000000")["state"] == "finished"
            assert dashboard.get(f"{below}/tasks?outcome=missing")["total"] == 15
            assert len(dashboard.get("/api/studies")["studies"]) == 2
            assert dashboard.end() == 0
