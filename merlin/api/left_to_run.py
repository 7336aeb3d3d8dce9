"""What of a study is left to run, and whether this machine may run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from merlin.errors import ConfigError, ExecutionError, WorkspaceError, command_line
from merlin.ledger.replay import replay
from merlin.plan.reopen import NOTHING, Again
from merlin.status.live import holder_of
from merlin.status.snapshot import is_published, take_snapshot
from merlin.workspace.directory import Workspace, shown_together


def refuse_running(studies: Iterable[Workspace]) -> None:
    """Raise WorkspaceError if a command runs one of them. The lock would find this, too, but only later."""
    for study in studies:
        if holder := holder_of(study):
            raise WorkspaceError(f"{study.path} runs ({holder}); wait for its end, or stop it")


def refuse_changed_samples(studies: Iterable[Workspace]) -> None:
    """Raise WorkspaceError for changed samples now, before the first chunk is refused because of them."""
    for study in studies:
        if study.samples_may_change:
            study.samples()


def refuse_published(workspace: Workspace, note: Callable[[str], None]) -> None:
    """Raise WorkspaceError if workers have the study: a run on this machine would do their work again.

    If the servers cannot be asked, a `note` says so, and the study may run: without servers workers commit nothing.
    """
    if not is_published(replay(workspace.ledger_dir, workspace.plan)):
        return
    from merlin.config.load import find_config  # with all that servers need, and most studies need none
    from merlin.views.live import ask_workers

    try:
        config = find_config()
        workers = None if config is None else ask_workers(workspace, config)
    except (ConfigError, ExecutionError) as error:
        note(f"the study was published before, and its servers cannot be asked: {error}")
        return
    if workers is not None:
        raise WorkspaceError(
            f"{workspace.path} is published for workers; end that first: {command_line('cancel', workspace.path)}"
        )


def has_work(workspace: Workspace, again: Again = NOTHING) -> bool:
    """True if tasks are missing, or if some run again that have ended."""
    totals = take_snapshot(workspace).totals
    return bool(totals.missing or again.tasks or (again.failed and totals.failed + totals.skipped))


def with_work(opened: Workspace, again: Again = NOTHING) -> list[Workspace]:
    """The study and its extensions, as far as a restart concerns them; at least the one that was named."""
    studies = shown_together(opened)
    if len(studies) == 1:
        return studies
    return [study for study in studies if has_work(study, again)] or [opened]
