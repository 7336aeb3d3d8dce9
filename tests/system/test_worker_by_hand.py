"""The line that `run-workers --echo` prints starts a worker when it is typed into a shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_merlin
from waiting import wait_until

SPEC = """\
description: {name: demo, description: d}
study: [{name: a, description: d, run: {cmd: "echo done > done.txt"}}]
merlin: {resources: {workers: {simw: {args: --concurrency 1, steps: [all]}}}}
"""


@pytest.mark.parametrize("shown", [True, False], ids=["as shown", "as upstream's users type it"])
def test_a_worker_that_is_started_by_hand_runs_a_study(tmp_path: Path, any_redis, shown: bool) -> None:
    (tmp_path / "demo.yaml").write_text(SPEC)
    env = {**os.environ, "HOME": str(tmp_path), "MERLIN_BROKER_URL": any_redis.url}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    line = run_merlin("run-workers", "demo.yaml", "--echo", cwd=tmp_path, env=env).stdout.strip()
    if not shown:
        line = line[line.index("celery -A merlin worker") :] + " --autoscale 2,1"
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=tmp_path, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )  # fmt: skip
    try:
        done = run_merlin("run", "demo.yaml", cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: any(tmp_path.glob("demo_*/a/done.txt")), (tmp_path / "worker.log").read_text)
        (workspace,) = tmp_path.glob("demo_*")

        def rows(name: str) -> list[dict[str, object]]:
            words = ("detailed-status", workspace, "--workers", name, "--json")
            return list(json.loads(run_merlin(*words, cwd=tmp_path, env=env).stdout))

        wait_until(lambda: len(rows("simw")) == 1, lambda: str(rows("simw")))
        assert rows("sim") == []
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
