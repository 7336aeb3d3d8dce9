"""`merlin run --dry`: the directories and scripts of every shell task, and nothing that runs."""

from __future__ import annotations

from pathlib import Path

from merlin.base.text import count
from merlin.cli.output import print_json
from merlin.execution.scripts import ScriptTemplate
from merlin.plan.plan import StepInstance, StepKind
from merlin.workspace.directory import Workspace


def write_scripts(workspace: Workspace, *, as_json: bool) -> int:
    """Write all scripts, say where they are, and return the exit code."""
    instances = [i for i in workspace.plan.instances if i.kind is StepKind.CMD]
    written = {instance.id: _write(workspace, instance) for instance in instances}
    if as_json:
        print_json({"workspace": workspace.path, "scripts": written, "exit_code": 0})
    else:
        print(f"workspace {workspace.path}")
        for id, num in written.items():
            print(f"  {id}: {count(num, 'script')}")
        print(f"dry run: {count(sum(written.values()), 'script')} written, nothing was run")
    return 0


def _write(workspace: Workspace, instance: StepInstance) -> int:
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
