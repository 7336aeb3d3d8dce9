"""An update that is killed at a chosen moment, or right after it, before anything runs."""

from __future__ import annotations

from pathlib import Path

from changing_study import Home
from commands import run_python

NEVER = 1_000_000
# updates a study, or undoes an update, and ends at its n-th change of the file system, or at the n-th change after the
# new plan is in place
KILLED = """
import os, sys
from pathlib import Path
left, counts = [int(sys.argv[3])], ["after the switch" not in sys.argv]
CALLS = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile", "os.truncate"}
def count(event, args):
    if event == "os.rename" and str(args[1]).endswith("/merlin_info/plan.json"):
        counts[0] = True
    if not counts[0]:
        return
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if writes or event in CALLS or (event == "open" and args[1] is None and args[2] & os.O_CREAT):
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)
from merlin.api.revising import apply_update, held, undo_update
from merlin.api.updating import UpdateOptions, plan_update
from merlin.workspace.checking import load_checked
from merlin.workspace.directory import open_workspace
from merlin.workspace.options import StudyOptions
spec = load_checked(sys.argv[1], {}, StudyOptions())
study = open_workspace(sys.argv[2])
if "undo" in sys.argv:
    sys.addaudithook(count)
    undo_update(study, print)
else:
    with held(study):
        sys.addaudithook(count)
        apply_update(plan_update(spec, StudyOptions(), study, UpdateOptions()))
print(int(sys.argv[3]) - left[0])
"""


def update_and_kill(home: Home, study: Path, step: int, *more: str) -> int:
    """Update the study, and kill that at its `step`-th change. Returns 9, or 0 if it made fewer changes."""
    done = run_python(KILLED, home.folder / "change.yaml", study, str(step), *more, cwd=home.folder)
    assert done.returncode in (0, 9), done.stderr
    return done.returncode


def update_alone(home: Home, study: Path) -> None:
    """Update the study, and run nothing."""
    assert update_and_kill(home, study, NEVER) == 0
