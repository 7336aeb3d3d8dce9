"""Which conditions are not met, by what the ledger and this machine know of a study. Pure: facts in, obstacles out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from merlin.base.text import count, duration, size
from merlin.batch.jobs import in_short
from merlin.errors import command_line
from merlin.execution.job_counts import count_jobs
from merlin.plan.bad_nodes import why_quarantined
from merlin.plan.job_policy import job_policy
from merlin.plan.plan import StepKind
from merlin.status.snapshot import CANCELLED
from merlin.views.after_stop import LIMITS, next_commands
from merlin.views.obstacle import Kind, Obstacle
from merlin.views.server_obstacles import of_servers
from merlin.views.study_facts import StudyFacts
from merlin.views.ways_to_start import jobs_command

LEAST_FREE_BYTES = 100_000_000
LEAST_FREE_FILES = 1000


def obstacles(facts: StudyFacts) -> Iterator[Obstacle]:
    """Every condition that keeps something of the study from running; what passes by itself comes last."""
    yield from _of_damage(facts)
    if not facts.missing:
        yield from _of_end(facts)
        return
    yield from of_disk(facts)
    yield from _of_state(facts)
    if facts.is_published and facts.holder is None:
        yield from of_servers(facts)
    for step, reason in facts.lacking.items():
        yield Obstacle(what=reason, kind=Kind.SIZE, step=step)
    yield from _of_bad_nodes(facts)
    yield from _of_step_jobs(facts)
    yield from _of_retries(facts)
    yield from _of_dependencies(facts)
    if facts.holder is not None and not facts.holder.is_suspended:
        yield from _of_local_workers(facts)


def _of_end(facts: StudyFacts) -> Iterator[Obstacle]:
    """Every task has an outcome: failed tasks, and tasks skipped because of them, could run again."""
    path = facts.workspace.path
    skipped = sum(counts.skipped for counts in facts.counts.values())
    if facts.failed or skipped:
        because = f", and {skipped:,} skipped because of them" if skipped else ""
        yield Obstacle(
            what=f"every task has an outcome: {facts.failed:,} failed{because}",
            remedy=f"see why: {command_line('failures', path)}; run them again: "
            f"{command_line('rerun', path, '--failed')}",
            kind=Kind.STATE,
        )


def _of_damage(facts: StudyFacts) -> Iterator[Obstacle]:
    """Places of the ledger that cannot be read. A torn end is normal after a kill."""
    for place in facts.state.damage:
        if place.torn:
            continue
        if not facts.missing:
            what = f"the ledger is damaged: {place}; every task has an outcome in the rest of it"
            yield Obstacle(what=what, kind=Kind.LEDGER, is_normal=True)
            continue
        yield Obstacle(
            what=f"the ledger is damaged: {place}; tasks whose outcome only stood there count as missing",
            remedy=f"put the file back from a copy, or run these tasks again: "
            f"{command_line('restart', facts.workspace.path)}",
            kind=Kind.LEDGER,
        )


def of_disk(facts: StudyFacts) -> Iterator[Obstacle]:
    """The file system of the workspace is full, or nearly."""
    disk, path = facts.disk, facts.workspace.path
    if disk is None:
        return
    if disk.refusal:
        yield Obstacle(
            what=f"nothing can be written to {path}: {disk.refusal}",
            remedy=f"make room (du -xh --max-depth=2 {path}), or ask for more; then: {command_line('restart', path)}",
            kind=Kind.DISK,
        )
    elif disk.free_bytes < LEAST_FREE_BYTES:
        yield Obstacle(
            what=f"the file system of {path} has {size(disk.free_bytes)} left",
            remedy=f"make room (du -xh --max-depth=2 {path}), then: {command_line('restart', path)}",
            kind=Kind.DISK,
        )
    if disk.free_files is not None and disk.free_files < LEAST_FREE_FILES:
        yield Obstacle(
            what=f"the file system of {path} has room for {count(disk.free_files, 'more file')} only",
            remedy="remove files; a step with `function:` makes none, and `cleanup: true` removes a sample's "
            "files once they are in a data set",
            kind=Kind.DISK,
        )


def _of_state(facts: StudyFacts) -> Iterator[Obstacle]:
    """Nobody runs it: it was never started, has stopped, or its run is suspended or was killed."""
    path, last = facts.workspace.path, facts.last_run
    restart = command_line("restart", path)
    if facts.holder is not None:
        if facts.holder.is_suspended:
            yield Obstacle(
                what=f"its run, {facts.holder}, is suspended",
                remedy=f"kill -CONT {facts.holder.pid}",
                kind=Kind.STATE,
            )
        return
    if facts.is_published:
        return
    if last is None:
        yield Obstacle(what="nothing of it was ever started", remedy=restart, kind=Kind.STATE)
    elif last.kind == "run_started":
        where = f"{last.data.get('host', 'this machine')}, process {last.data.get('pid', '?')}"
        yield Obstacle(
            what=f"its last run ({where}) was killed: it has left no word, and holds the workspace no more",
            remedy=restart,
            kind=Kind.STATE,
        )
    else:
        yield _stopped(facts, str(last.data.get("reason", "")))
        if refused := str(last.data.get("refused", "")):
            yield Obstacle(
                what=f"before it stopped, a batch job was refused: {in_short(refused)}",
                remedy=_mend_batch(facts),
                kind=Kind.JOB,
            )


def _stopped(facts: StudyFacts, reason: str) -> Obstacle:
    path = str(facts.workspace.path)
    kind = Kind.LIMIT if reason.startswith(LIMITS) or "failed hard" in reason else Kind.STATE
    if "No space left" in reason or "quota" in reason.lower():
        kind = Kind.DISK
    what = (
        "merlin cancel has ended it"
        if reason == CANCELLED
        else f"it has stopped: {reason or 'no reason is known'}"
    )
    remedy = "; ".join(next_commands(path, reason, has_failed=facts.failed > 0))
    if num := facts.num_on_workers:
        what += f"; {count(num, 'chunk')} of before still run{'s' * (num == 1)}"
        remedy = f"wait for that, or end it: {command_line('cancel', path)}; {remedy}"
    if kind is Kind.LIMIT:
        remedy = f"see what failed: {command_line('failures', path)}; {remedy}"
    return Obstacle(what=what, remedy=remedy, kind=kind)


def _of_bad_nodes(facts: StudyFacts) -> Iterator[Obstacle]:
    path = facts.workspace.path
    for node, step in sorted(facts.bad_nodes.items()):
        yield Obstacle(
            what=why_quarantined(node, step),
            remedy=f"see what failed there: {command_line('failures', path)}; tell those who run the machine; "
            f"for a run on all nodes again: {command_line('restart', path)}",
            kind=Kind.NODE,
        )


def _of_step_jobs(facts: StudyFacts) -> Iterator[Obstacle]:
    """Batch jobs of steps that wait, cannot be submitted, or have reached their highest number."""
    for counts in count_jobs(facts.step_jobs):
        step = facts.workspace.instance(counts.instance).step
        if counts.refused:
            yield Obstacle(
                what=f"{counts.scheduler} refuses the jobs of {counts.instance}: {'; '.join(counts.refusals)}",
                remedy=_mend_batch(facts),
                kind=Kind.JOB,
                step=step,
            )
        if counts.pending:
            why = "; ".join(counts.reasons) or f"{counts.scheduler} has given no reason yet"
            yield Obstacle(
                what=f"{count(counts.pending, 'batch job')} of {counts.instance} pending: {why}",
                remedy="with fewer `nodes` or a shorter `walltime` of the step they start sooner",
                kind=Kind.JOB,
                step=step,
                is_normal=facts.is_running,
            )
    open_jobs = (job for job in facts.step_jobs if not (job.state.is_over or job.refused))
    num_open = Counter(facts.workspace.instance(job.chunk.instance).step for job in open_jobs)
    for step, num in num_open.items():
        policy = next((p for i in facts.instances(step) if (p := job_policy(i)) is not None), None)
        ready = sum(facts.counts[i.id].ready for i in facts.instances(step))
        if policy is not None and num >= policy.max_jobs and ready > num * policy.tasks_per_job:
            jobs = count(num, "batch job")
            yield Obstacle(
                what=f"{step} has {count(ready, 'ready task')}, and {jobs} at a time is all there may be",
                remedy="more at a time, in the next study: batch.max_jobs and batch.tasks_per_job of the step",
                kind=Kind.CAP,
                step=step,
                is_normal=True,
            )


def _mend_batch(facts: StudyFacts) -> str:
    """What to do about jobs that are refused. A command that runs the study keeps it from being updated."""
    stop = "stop the run (Ctrl-C), " if facts.holder is not None else ""
    update = command_line("run", "SPEC", "--update", facts.workspace.root)
    return f"if the step or `batch` asks for something wrong: {stop}mend the spec; then: {update}"


def _of_retries(facts: StudyFacts) -> Iterator[Obstacle]:
    """Tasks that asked to run again, by exit code, and wait for their delay."""
    by_step: dict[str, tuple[int, float, float]] = {}
    for each in facts.waiting:
        step = facts.workspace.instance(each.instance).step
        num, first, last = by_step.get(step, (0, each.until, each.until))
        by_step[step] = (num + each.num_tasks, min(first, each.until), max(last, each.until))
    for step, (num, first, last) in by_step.items():
        when = duration(max(0.0, first - facts.now))
        until = f", the last of them in {duration(last - facts.now)}" if last > first + 1 else ""
        yield Obstacle(
            what=f"{count(num, 'task')} of {step} asked to run again (exit code 100 or 104), and may in {when}{until}",
            remedy="it goes on by itself; how long it waits is retry_delay of the step",
            kind=Kind.RETRY,
            step=step,
            is_normal=facts.is_running,
        )


def _of_dependencies(facts: StudyFacts) -> Iterator[Obstacle]:
    """Steps that wait for others."""
    waiting: Counter[str] = Counter()
    behind: dict[str, dict[str, None]] = {}  # step -> steps that it waits for
    for instance in facts.workspace.plan.instances:
        if num := facts.counts[instance.id].waiting:
            waiting[instance.step] += num
            others = behind.setdefault(instance.step, {})
            for edge in instance.edges:
                source = facts.workspace.instance(edge.source)
                if facts.counts[source.id].missing and source.step != instance.step:
                    others[source.step] = None
    for step, num in waiting.items():
        first = next(iter(behind[step]), "")
        yield Obstacle(
            what=_waits(facts, step, list(behind[step]), num),
            remedy=command_line("explain", facts.workspace.path, first) if first else "",
            kind=Kind.DEPENDENCY,
            step=step,
            is_normal=True,
        )


def _waits(facts: StudyFacts, step: str, others: list[str], num: int) -> str:
    """What `num` tasks of a step wait for; without other steps that is a manifest, and it waits for its shards."""
    if not others:
        shards = (i for i in facts.instances(step) if i.kind is StepKind.AGGREGATE)
        num_open = sum(facts.counts[instance.id].missing for instance in shards)
        return f"{step}'s manifest waits for its {count(num_open, 'shard')}"
    names = [
        f"{name} ({count(sum(facts.counts[i.id].missing for i in facts.instances(name)), 'task')} open)"
        for name in others
    ]
    return f"{step} waits for {' and for '.join(names)}, with {count(num, 'task')}"


def _of_local_workers(facts: StudyFacts) -> Iterator[Obstacle]:
    """The obstacle of a run on one machine: more tasks are ready than it has workers."""
    ready: Counter[str] = Counter()
    for instance in facts.workspace.plan.instances:
        num = facts.counts[instance.id].startable
        if num and job_policy(instance) is None:
            ready[instance.step] += num
    num_workers = int(facts.last_run.data.get("workers", 0)) if facts.last_run else 0
    if ready.total() > num_workers > 0:
        path = facts.workspace.path
        more = command_line("restart", path, "--workers", 2 * num_workers)
        batch = jobs_command(facts.workspace.plan, path)
        elsewhere = f"; on other machines, with a broker: {batch}" if batch else ""
        yield Obstacle(
            what=f"{count(ready.total(), 'task')} of {', '.join(ready)} run or are ready, for "
            f"{count(num_workers, 'worker process', 'worker processes')} on this machine",
            remedy=f"for more at a time press Ctrl-C there, then: {more}{elsewhere}",
            kind=Kind.BUSY,
            is_normal=True,
        )
