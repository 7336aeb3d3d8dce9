"""What of a study is left to run, and whether this machine may run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from merlin.base.text import count
from merlin.errors import ConfigError, ExecutionError, SamplesError, WorkspaceError, command_line
from merlin.ledger.replay import replay
from merlin.plan.failure_limits import limit_reached, with_max_failures
from merlin.plan.plan import Plan
from merlin.plan.reopen import NOTHING, Again
from merlin.plan.runs import RunMap
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import FAILURES, NO_OUTCOME, Outcome
from merlin.status.live import holder_of
from merlin.status.run_events import end_of_run
from merlin.status.snapshot import is_published, take_snapshot
from merlin.views.after_stop import LIMITS, next_commands
from merlin.workspace.directory import Workspace, shown_together


def refuse_running(studies: Iterable[Workspace]) -> None:
    """Raise WorkspaceError if a command runs one of them. The lock would find this, too, but only later."""
    for study in studies:
        if holder := holder_of(study):
            raise WorkspaceError(f"{study.path} runs ({holder}); wait for its end, or stop it")


def refuse_changed_samples(studies: Iterable[Workspace]) -> None:
    """Raise WorkspaceError for samples that are gone or have changed, before anything is reset because of a run."""
    for study in studies:
        if study.plan.samples is None:
            continue
        try:
            study.samples()
        except (SamplesError, WorkspaceError) as error:
            from merlin.workspace.used_samples import how_to_have_again  # with the spec's blocks

            found = [f"{each.file}: {each.message}" for each in getattr(error, "diagnostics", ())]
            raise WorkspaceError("; ".join([*(found or [str(error)]), *how_to_have_again(study)])) from error


def refuse_failed_before(studies: Iterable[Workspace], max_failures: float | None = None) -> None:
    """Raise WorkspaceError if a limit of failures has stopped one of them, and would stop it again.

    `max_failures`, if given, takes the place of the plan's.
    """
    for study in studies:
        plan = study.plan if max_failures is None else with_max_failures(study.plan, max_failures)
        state = replay(study.ledger_dir, plan)
        if not (end_of_run(state) or "").startswith(LIMITS):
            continue
        if reason := limit_reached(plan, state.outcomes):
            lines = next_commands(str(study.path), reason, has_failed=True, root=str(study.root))
            raise WorkspaceError("\n".join([f"{study.path} has stopped: {reason}", *lines]))


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
    if totals.missing or again.tasks:
        return True
    if not (again.failed and totals.failed + totals.skipped):
        return False
    return again.steps is None or _runs_any_of(workspace, again, again.steps)


def _runs_any_of(workspace: Workspace, again: Again, steps: tuple[str, ...]) -> bool:
    """False if none of these steps has failed, and what was skipped of them would be skipped once more."""
    plan, outcomes = workspace.plan, dict(replay(workspace.ledger_dir, workspace.plan).outcomes)
    for id, ranges in again.to_reset(plan, outcomes).items():
        have = outcomes[id]
        outcomes[id] = RunMap.from_runs(have.size, have.runs(0, have.size))
        for lo, hi in ranges:
            outcomes[id].set(lo, hi, NO_OUTCOME)
    counts = Scheduler(plan, outcomes, num_workers=1).counts()
    return any(counts[id].missing for id in _named(plan, steps))


def _named(plan: Plan, steps: tuple[str, ...]) -> set[str]:
    return {instance.id for instance in plan.instances if instance.step in steps or instance.id in steps}


def why_nothing(workspace: Workspace, again: Again) -> str:
    """Why `has_work` says that nothing runs; with the command for the steps whose failures keep the chosen ones."""
    if again.steps is None:
        return "nothing is left to run"
    plan, counts = workspace.plan, replay(workspace.ledger_dir, workspace.plan).counts()
    chosen = _named(plan, again.steps)
    words = f"nothing of {', '.join(again.steps)} has failed"
    if not (skipped := sum(counts[id].get(Outcome.SKIPPED, 0) for id in chosen)):
        return words
    causes, sources = dict[str, None](), set[str]()
    for instance in reversed(plan.instances):
        if instance.id in chosen or instance.id in sources:
            sources |= {edge.source for edge in instance.edges}
            if instance.id not in chosen and any(counts[instance.id].get(each) for each in FAILURES):
                causes[instance.step] = None
    steps = [word for step in reversed(causes) for word in ("--step", step)]
    again_with = command_line("restart", workspace.path, "--failed", *steps)
    were = f"{count(skipped, 'task')} {'was' if skipped == 1 else 'were'}"
    return f"{words}; {were} skipped because of others that failed: {again_with}"


def with_work(opened: Workspace, again: Again = NOTHING) -> list[Workspace]:
    """The study and its extensions, as far as a restart concerns them; at least the one that was named."""
    studies = shown_together(opened)
    if len(studies) == 1:
        return studies
    return [study for study in studies if has_work(study, again)] or [opened]
