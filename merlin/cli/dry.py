"""`merlin run --dry`: the directories and scripts of every shell task, and nothing that runs."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from merlin.base.files import replacing
from merlin.base.text import count
from merlin.batch.contract import BatchScheduler
from merlin.batch.registry import scheduler_of
from merlin.batch.script import fit_job_name
from merlin.cli.output import print_json
from merlin.errors import UsageError
from merlin.execution.scripts import ScriptTemplate
from merlin.plan.job_policy import job_request
from merlin.plan.plan import StepInstance, StepKind
from merlin.workspace.directory import Workspace

MAX_LINES = 40  # of step instances


def write_scripts(workspace: Workspace, *, as_json: bool) -> int:
    """Write all scripts, say where they are, and return the exit code."""
    instances = [i for i in workspace.plan.instances if i.kind is StepKind.CMD]
    written = {instance.id: _write(workspace, instance) for instance in instances}
    if as_json:
        print_json({"workspace": workspace.path, "scripts": written, "exit_code": 0})
    else:
        print(f"workspace {workspace.path}")
        for id, num in list(written.items())[:MAX_LINES]:
            print(f"  {id}: {count(num, 'script')}")
        if (hidden := len(written) - MAX_LINES) > 0:
            print(f"  … and {count(hidden, 'more step instance')} (--json shows all)")
        print(f"dry run: {count(sum(written.values()), 'script')} written, nothing was run")
    return 0


def _write(workspace: Workspace, instance: StepInstance) -> int:
    scheduler = scheduler_of(str(instance.resources.get("batch.type", "local")))
    directives = _directives(scheduler, instance)
    num = 0
    for command, suffix in ((instance.command, ""), (instance.restart, ".restart")):
        if command is None:
            continue
        for script in ScriptTemplate(workspace, instance, command).scripts(range(instance.num_tasks)):
            Path(script.directory).mkdir(parents=True, exist_ok=True)
            path = Path(script.directory, f"{instance.script_name}{suffix}{scheduler.script_suffix}")
            first, rest = script.text.split("\n", 1)
            with replacing(path, mode=0o755, durable=False) as temporary:
                temporary.write_text("\n".join([first, *directives, rest]), encoding="utf-8")
            num += 1
    return num


def _directives(scheduler: BatchScheduler, instance: StepInstance) -> list[str]:
    """The header of a script that is submitted by hand; as with Maestro none for a step without nodes and procs."""
    if not {"nodes", "procs"} & instance.resources.keys():
        return []
    name = instance.script_name
    try:
        request = replace(
            job_request(instance, name=fit_job_name(name), output=f"{name}.out"), error=f"{name}.err"
        )
        return scheduler.directives(request)
    except ValueError as error:
        raise UsageError(f"step {instance.id!r} makes no job of {scheduler.title}: {error}") from error
