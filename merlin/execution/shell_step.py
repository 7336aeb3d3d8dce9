"""What the chunks of one shell step share: its script template, its shell, and the size of a batch."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from merlin.execution.fresh_shell import FreshShell
from merlin.execution.scripts import Script, ScriptTemplate
from merlin.execution.shell import Shell, ShellTask, shell_argv
from merlin.execution.task_files import file_size, set_aside
from merlin.execution.waiting import Waiter
from merlin.execution.warm_rules import (
    bash_is_new_enough,
    can_run_warm,
    environment_allows,
    has_valid_syntax,
    is_harmless,
    is_plain_bash,
)
from merlin.execution.warm_shell import WarmShell
from merlin.plan.plan import StepInstance
from merlin.workspace.directory import Workspace

_FIRST_BATCH, _LARGEST_BATCH = 8, 256
_LONGEST_WARM_VALUE = 10_000  # characters; in quotes they become up to 16 times as many bytes
_BATCH_S = 0.5  # of work, from which the size of the next batch follows


class ShellStep:
    """The script template and the shell of one step instance. Its chunks share them."""

    def __init__(
        self, workspace: Workspace, instance: StepInstance, env: dict[str, str], *, is_restart: bool
    ) -> None:
        self.instance = instance
        self.is_restart = is_restart  # the tasks have asked to continue where they were
        restart = instance.restart if is_restart else None
        self.stem = instance.script_name if restart is None else f"{instance.script_name}.restart"
        command = instance.command if restart is None else restart
        self._leftovers = _leftovers(workspace, instance)
        self.template = ScriptTemplate(workspace, instance, command)
        self.batch_size = _FIRST_BATCH
        self._task_s: float | None = None
        self._argv = shell_argv(instance.shell)
        self._env = env
        self._home = str(workspace.path)
        self._checked: bool | None = None  # whether the template can run warm; None before the first script
        self._is_text = self.template.uses_columns and instance.per_sample and not workspace.samples().numeric

    def shell(self, variables: Mapping[str, str], *, warm: bool, waiter: Waiter) -> Shell:
        timeout_s, env = self.instance.timeout_s, {**self._env, **variables}
        if warm:
            return WarmShell(self._argv, env, waiter, timeout_s, self._home, self.prepare_retry)
        return FreshShell(self._argv, env, waiter, timeout_s)

    def prepare_retry(self, task: ShellTask) -> None:
        """Prepare the directory of a task for another try."""
        if not self.is_restart:
            set_aside(task.directory, self._leftovers)

    def task(self, script: Script, *, is_new: bool) -> ShellTask:
        """The task of a script. With `is_new` its directory is new, so it has no leftovers of an earlier try."""
        task = ShellTask(script.task, script.directory, self.stem, script.variables)
        if is_new:
            return task
        self.prepare_retry(task)
        return replace(task, err_at=file_size(task.err)) if self.is_restart else task

    def can_be_warm(self, script: Script) -> bool:
        """Return whether the step may run in a warm shell, judged by its first script."""
        if self._checked is None:
            self._checked = (
                not self.instance.fresh_shell
                and is_plain_bash(self._argv)
                and environment_allows(self._env)
                and can_run_warm(script.text)
                and bash_is_new_enough(tuple(self._argv))
                and has_valid_syntax(self._argv, script.text)
            )
        return self._checked

    def is_unsafe(self, script: Script) -> bool:
        """Return whether this task's values rule out a warm shell. Numbers never do."""
        if any(len(value) > _LONGEST_WARM_VALUE for _, value in script.variables):
            return True  # too long for the program of a warm shell
        return self._is_text and not (is_harmless(script.values) and can_run_warm(script.text))

    def update_batch_size(self, seconds: float) -> None:
        """Choose the size of the next batch from the time that tasks take."""
        self._task_s = seconds if self._task_s is None else 0.9 * self._task_s + 0.1 * seconds
        self.batch_size = max(1, min(int(_BATCH_S / max(self._task_s, 1e-6)), _LARGEST_BATCH))


def _leftovers(workspace: Workspace, instance: StepInstance) -> tuple[str, ...]:
    """The files of a try that must not count for the next one: its output, and the files that data sets collect."""
    name = instance.script_name
    output = [f"{stem}{suffix}" for stem in (name, f"{name}.restart") for suffix in (".out", ".err")]
    aggregates = (workspace.instance(target).aggregate for target in instance.feeds)
    collected = (field.file for aggregate in aggregates if aggregate for field in aggregate.fields)
    return tuple(dict.fromkeys([*output, *(file for file in collected if file)]))
