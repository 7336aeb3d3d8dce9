"""`merlin run --dry`: the directories and scripts of every shell task, and nothing that runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.text import count
from merlin.cli.output import print_json

if TYPE_CHECKING:
    from merlin.plan.plan import StepInstance
    from merlin.workspace.directory import Workspace


def write_scripts(workspace: Workspace, *, as_json: bool) -> int:
    """Write all scripts, say where they are, and return the exit code."""
    from merlin.plan.plan import StepKind

    written = {
        instance.id: _write(workspace, instance)
        for instance in workspace.plan.instances
        if instance.kind is StepKind.CMD
    }
    total = sum(written.values())
    if as_json:
        print_json({"workspace": workspace.path, "scripts": written, "exit_code": 0})
    else:
        print(f"workspace {workspace.path}")
        for id, num in written.items():
            print(f"  {id}: {count(num, 'script')}")
        print(f"dry run: {count(total, 'script')} written, nothing was run")
    return 0


def _write(workspace: Workspace, instance: StepInstance) -> int:
    from merlin.execution.scripts import ScriptTemplate

    num = 0
    for command, suffix in ((instance.command, ".sh"), (instance.restart, ".restart.sh")):
        if command is None:
            continue
        for script in ScriptTemplate(workspace, instance, command).scripts(range(instance.num_tasks)):
            Path(script.directory).mkdir(parents=True, exist_ok=True)
            path = Path(script.directory, f"{instance.script_name}{suffix}")
            path.write_text(script.text, encoding="utf-8")
            path.chmod(0o755)
            num += 1
    return num
