"""Prints explanations: of a study, a step, a sample and a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from merlin.base.text import count, duration, printable, short_name
from merlin.cli.advice import reconciled, shown_inputs
from merlin.cli.output import local_time, plain, print_json
from merlin.plan.outcome_counts import summed
from merlin.views.explain import StudyExplanation, explain_study
from merlin.views.obstacle import Obstacle
from merlin.views.server_obstacles import tasks_of
from merlin.views.step_story import StepStory, step_story
from merlin.views.story import SampleStory, TaskStory, Try, story_of
from merlin.views.study_facts import StudyFacts, facts_of
from merlin.views.targets import kind_of, worker_named
from merlin.views.worker_story import WorkerStory, worker_story
from merlin.workspace.directory import Workspace, shown_together

MAX_TRIES = 12  # of a task that are shown, the last ones
MAX_CAUSES = 3  # of a step's failures that are shown, the most frequent ones


def show_explanation(workspace: Workspace, word: str, *, as_json: bool) -> int:
    """Explain the study, or what `word` names of it; returns the exit code. Raises UsageError for an unknown word."""
    if not word:
        explained = explain_study(workspace)
        _print_study(workspace, explained, as_json)
        return explained.exit_code
    studies = shown_together(workspace)
    kind = kind_of(studies, word)
    if kind == "sample":
        return _tell(story_of(workspace, int(word)), _print_sample, as_json)
    if kind == "step":
        return _tell(step_story(explain_study(workspace), word), _print_step, as_json)
    members = [facts_of(study, asks_servers=True) for study in studies]
    worker = worker_story(members, worker_named(members, word))
    return _tell(worker, partial(_print_worker, members=members), as_json)


def _tell(story: SampleStory | StepStory | WorkerStory, draw: Callable[[Any], None], as_json: bool) -> int:
    """Print a story; returns its exit code."""
    if as_json:
        print_json({**plain(story), "exit_code": story.exit_code})
    else:
        draw(story)
    return story.exit_code


# ------------------------------------------------------------------ study


def _print_study(workspace: Workspace, explained: StudyExplanation, as_json: bool) -> None:
    totals = summed(counts for facts in explained.members for counts in facts.counts.values())
    if as_json:
        print_json(
            {
                "workspace": workspace.path,
                "name": workspace.plan.name,
                "is_running": any(facts.is_running for facts in explained.members),
                "running": explained.num_running,
                **totals,
                "obstacles": explained.obstacles,
                "exit_code": explained.exit_code,
            }
        )
        return
    print(f"{workspace.plan.name}: {reconciled(totals)}")
    print(_state(explained))
    print_obstacles(explained.obstacles)


def _state(explained: StudyExplanation) -> str:
    if explained.is_ended:
        return "every task has ended ok" if explained.is_ok else "nothing is left to run"
    for facts in explained.members:
        if facts.holder is not None:
            return f"{facts.holder} runs it"
    if explained.num_running:
        return f"{count(explained.num_running, 'chunk')} run"
    return "nothing of it is known to run"


def print_obstacles(obstacles: Iterable[Obstacle]) -> None:
    """Print conditions, each with what to do about it."""
    for obstacle in obstacles:
        print(f"- {obstacle.what}")
        for line in obstacle.remedy.split("; ") if obstacle.remedy else ():
            print(f"    {line}")


# ------------------------------------------------------------------ step


def _print_step(story: StepStory) -> None:
    print(f"{story.step}: {reconciled(summed([story]))}")
    if story.missing:
        running = "" if story.running is None else f"; {count(story.running, 'chunk')} run"
        print(f"  could run now, or does: {story.ready:,}; waits for other steps: {story.waiting:,}{running}")
    served = "" if story.num_workers is None else f", served by {count(story.num_workers, 'worker')}"
    print(f"  queue    {story.queue}{served}")
    print(f"  needs    {story.needs} for each task")
    for line in story.after:
        print(f"  after    {line}")
    for cause in story.causes[:MAX_CAUSES]:
        print(f"  failed   {count(cause.count, 'task')}, {printable(cause.what)}   [{cause.group}]")
    if len(story.causes) > MAX_CAUSES:
        print(f"  … {count(len(story.causes) - MAX_CAUSES, 'more cause')}")
    print_obstacles(story.obstacles)


# ------------------------------------------------------------------ sample


def _print_sample(story: SampleStory) -> None:
    print(f"sample {story.sample_id} of {story.workspace}")
    if story.inputs:
        print(f"  inputs   {shown_inputs(story.inputs)}")
    for task in story.tasks:
        _print_task(task)


def _print_task(task: TaskStory) -> None:
    why = f": {task.why}" if task.why else ""
    source = f" of {task.source}" if task.source else ""
    print(f"{task.instance}{source}: {task.outcome}{why}")
    hidden = len(task.history) - MAX_TRIES
    if hidden > 0:
        print(f"  … {count(hidden, 'earlier entry', 'earlier entries')}")
    for each in task.history[-MAX_TRIES:]:
        print(f"  {local_time(each.started)}  {_try(each)}")
    if task.directory:
        print(f"  files    {task.directory}")
    if task.remedy:
        print(f"  to do    {task.remedy}")


def _try(each: Try) -> str:
    if each.seconds is None:
        return f"{each.outcome}: {each.cause}" if each.cause else each.outcome
    code = f", exit code {each.exit_code}" if each.exit_code else ""
    again = f", after {count(each.tries, 'wish', 'wishes')} to run again" if each.tries else ""
    number = f", attempt {each.attempt}" if each.attempt > 1 else ""
    where = f"on {each.host} ({short_name(each.worker)})"
    return f"{each.outcome} {where} in {duration(each.seconds)}{code}{again}{number}"


# ------------------------------------------------------------------ worker


def _print_worker(story: WorkerStory, members: Iterable[StudyFacts]) -> None:
    state = "alive" if story.is_alive else "not alive"
    print(f"{story.name} on {story.host or 'an unknown host'}: {state}")
    if story.queues:
        machine = f"{count(story.cores, 'core')}, {count(len(story.gpus), 'GPU')}" if story.cores else ""
        slots = f"{count(story.slots, 'chunk')} at a time"
        print(f"  serves   {', '.join(story.queues)} ({'; '.join(filter(None, (slots, machine)))})")
    if story.job:
        left = "" if story.left_s is None else f", {duration(story.left_s)} left"
        print(f"  lives in job {story.job}{left}")
    known = {facts.workspace.plan.study_id: facts for facts in members}
    for chunk in story.running:
        facts = known.get(chunk.study)
        since = duration(max(0.0, (facts.now if facts else chunk.since) - chunk.since))
        what = tasks_of(chunk)
        print(
            f"  runs     {what}{'' if facts else ', of another study'}{f', since {since}' if facts else ''}"
        )
    done = story.done
    if done.chunks:
        ended = f"{done.ok:,} ok and {done.failed:,} failed tasks"
        print(f"  has done {ended} of {', '.join(done.steps)}, in {duration(done.busy_s)}")
        print(f"  last     {local_time(done.last)}")
    print_obstacles(story.obstacles)
