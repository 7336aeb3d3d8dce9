"""An update on a full disk leaves the old study, or goes on once there is room; a second one meanwhile is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from changing_study import SPEC, Home, contents, fresh, study_of
from servers import unavailable
from small_disk import small_disk
from waiting import wait_until

from merlin.base.files import TEMPORARY_SUFFIX
from merlin.workspace.directory import open_workspace

EDITED = SPEC.replace("SCALE: 2", "SCALE: 3").replace("N: 10", "N: 9")


def leave(disk: Path, kilobytes: int) -> Path:
    """Fill the disk but for so much; returns the file that does it."""
    ballast, room = disk / "ballast", os.statvfs(disk)
    ballast.write_bytes(bytes(room.f_bavail * room.f_bsize - kilobytes * 1024))
    return ballast


def test_an_update_on_a_full_disk_leaves_the_old_study_or_goes_on(
    finished_change: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 16) as is_mounted:
        if not is_mounted:
            unavailable("a small file system cannot be mounted")
        home = Home(disk / "home")
        shutil.copytree(finished_change, home.folder, symlinks=True, dirs_exist_ok=True)
        study = study_of(home)
        before, seen = contents(study), set()
        for kilobytes in (0, 12, 24, 40, 56, 72, 200):
            home.write(EDITED)
            ballast = leave(disk, kilobytes)
            done = home.say("run", "change.yaml", "--local", "--update", study, "--yes")
            revision = open_workspace(study).plan.revision
            seen.add(revision)
            ballast.unlink()
            if revision:
                break
            assert done.returncode == 1 and f"{study} is as it was" in done.stderr, done.stderr
            assert f"{study}/merlin_info/" in done.stderr and "make room" in done.stderr, done.stderr
            assert contents(study) == before and not list(study.rglob(f"*{TEMPORARY_SUFFIX}"))
            assert home.ask("status", study)["state"] == "finished"
        assert seen == {0, 1}  # what has become of it then, a restart finishes
        home.ask("restart", study, "--local")
        home.ask("shards", "verify", study)
        assert contents(study) == fresh(EDITED)


def test_a_second_update_is_refused_while_one_runs(tmp_path: Path, finished_change: Path) -> None:
    shutil.copytree(finished_change, tmp_path / "home", symlinks=True)
    home = Home(tmp_path / "home")
    study, gate = study_of(home), tmp_path / "gate"
    gate.touch()
    home.write(SPEC.replace("echo report >>", f"while test -e {gate}; do sleep 0.05; done; echo report >>"))
    words = ["run", "change.yaml", "--local", "--update", str(study), "--yes"]
    first = home.start(*words)
    try:
        wait_until(lambda: open_workspace(study).plan.revision == 1, first)
        wait_until(lambda: home.ask("status", study)["state"] == "running", first)
        for command in (words, ["history", str(study), "--undo"]):
            refused = home.say(*command)
            assert refused.returncode == 1 and str(first.pid) in refused.stderr, refused.stderr
            assert "wait" in refused.stderr and "stop" in refused.stderr  # what to do
        assert home.say("plan", "change.yaml", "--update", study).returncode == 0
    finally:
        gate.unlink()
    assert first.wait(100) == 0
    assert len(home.ask("history", study)["revisions"]) == 2
