"""The story of a sample, a step and a worker; what a word on the command line names; and whose logs there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from small_plans import every, gather, step
from study_on_disk import make_workspace
from told_study import FAILED, OK, SKIPPED, chunk, told_study, write

from merlin import __version__
from merlin.errors import UsageError
from merlin.execution.distributed.registry import OpenWork, RunningChunk, WorkerInfo
from merlin.ledger.records import Failure, RangeRecord
from merlin.plan.fit import Need
from merlin.plan.plan import StepKind
from merlin.plan.tasks import Chunk
from merlin.status.activity import Holder
from merlin.views.explain import StudyExplanation, explain_study
from merlin.views.logs import TaskLogs, logs_of_failures
from merlin.views.obstacle import Kind
from merlin.views.rerunning import Choice, reruns
from merlin.views.step_story import step_story
from merlin.views.story import SampleStory, TaskStory, story_of
from merlin.views.study_facts import Handed, OnServers, StudyFacts, facts_of
from merlin.views.targets import kind_of, worker_named
from merlin.views.worker_story import worker_story
from merlin.workspace.directory import Workspace
from merlin.workspace.holding import lock

NOW = 10_000.0
WORKER = WorkerInfo(
    name="celery@simw.n1", host="n1", pid=7, queues=["hot"], concurrency=2, started=0.0, version=__version__,
    cores=4, job="12", ends=NOW + 3600,
)  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return told_study(tmp_path)


def task(story: SampleStory, step: str) -> TaskStory:
    (found,) = [each for each in story.tasks if each.step == step]
    return found


# ------------------------------------------------------------------ samples


def test_a_task_that_got_a_second_chance_has_every_try_with_who_and_when(workspace: Workspace) -> None:
    story = story_of(workspace, 1)
    sim = task(story, "sim")
    assert (sim.outcome, sim.why) == ("ok", "")
    assert [(t.outcome, t.worker, t.started, t.tries, t.exit_code, t.cause) for t in sim.history] == [
        ("failed", "w0", 1003.0, 0, 3, "exit code 3"),
        ("reset", "controller", 1999.0, 0, None, "to be run again"),
        ("ok", "w0", 2001.0, 1, 0, ""),
    ]
    assert [each.outcome for each in task(story, "post").history] == ["skipped", "reset", "ok"]
    assert story.inputs == {"X": 1.0}


def test_a_failure_a_skip_and_what_waits_say_why_and_what_mends_it(workspace: Workspace) -> None:
    failed = story_of(workspace, 5)
    assert (task(failed, "sim").outcome, task(failed, "sim").why) == ("failed", "exit code 4")
    assert task(failed, "sim").remedy == f"merlin rerun {workspace.path} --samples 5 --step sim"
    cut = story_of(workspace, 4)
    assert task(cut, "sim").outcome == "missing"
    assert task(cut, "sim").why == "it is ready, and nobody runs the study"
    assert task(cut, "sim").remedy == f"merlin restart {workspace.path}"
    assert task(cut, "post").why == "it waits for its task of sim"
    assert (failed.exit_code, cut.exit_code) == (1, 1)
    with lock(workspace):
        assert (story_of(workspace, 5).exit_code, story_of(workspace, 4).exit_code) == (1, 0), "it will run"


def test_a_skip_names_the_task_that_failed(workspace: Workspace) -> None:
    skip = RangeRecord(instance="post", lo=5, hi=6, outcome=SKIPPED, cause="…", started=2004.0)
    write(workspace, ("controller", "run2", "n1"), skip)
    found = task(story_of(workspace, 5), "post")
    assert found.why == "its task of sim failed: exit code 4"
    assert found.remedy == f"merlin rerun {workspace.path} --samples 5 --step sim"


def test_a_failed_shard_has_a_command_that_runs_it_again_and_until_then_its_manifest_waits(
    tmp_path: Path,
) -> None:
    manifest = step(
        "collect.manifest", 1, every("collect"), step="collect", kind=StepKind.MANIFEST, per_sample=False
    )
    collect = replace(gather("collect", ("sim",), 4, 2), per_sample=False)
    made = make_workspace(tmp_path, step("sim", 4), collect, manifest)
    write(made, ("w0", "run1", "n1"), chunk("sim", 0, [OK] * 4, [1.0] * 4, started=1001.0))
    (waits,) = [each for each in explain_study(made).obstacles if each.kind is Kind.DEPENDENCY]
    assert waits.what == "collect's manifest waits for its 2 shards"
    lost = [Failure(task=1, cause="no space", exit_code=1)]
    write(
        made,
        ("w0", "run1", "n1"),
        chunk("collect", 0, [OK, FAILED], [1.0] * 2, started=1002.0, failures=lost),
    )
    found = task(story_of(made, 3), "collect")
    assert (found.outcome, found.why) == ("failed", "no space")
    assert found.remedy == f"merlin rerun {made.path} --failed --step collect"
    (rerun,) = reruns(made, Choice(failed=True, steps=("collect",)))
    assert rerun.again["collect"] == [(1, 2)]


def test_a_sample_that_there_is_not_is_an_error(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="no sample 6"):
        story_of(workspace, 6)


# ------------------------------------------------------------------ workers


def facts(workspace: Workspace, worker: WorkerInfo, **more: object) -> StudyFacts:
    """Facts of a study that workers have, one of them this one."""
    fields = {"is_held": True, "owner": "x", "plan": "", "handed": (), "work": (), "memory_full": ""}
    servers = OnServers(
        **{**fields, "workers": (worker,), "served": {worker.name: frozenset(worker.queues)}, **more}
    )
    return replace(facts_of(workspace, now=NOW), is_published=True, servers=servers)


def why(found: StudyFacts) -> list[tuple[Kind, str]]:
    return [(each.kind, each.what) for each in worker_story([found], "simw.n1").obstacles]


@pytest.mark.parametrize(
    ("worker", "work", "kind", "words"),
    [
        (replace(WORKER, is_stopping=True), (), Kind.WORKERS, "it is ending"),
        (
            replace(WORKER, queues=["other"]),
            (),
            Kind.WORKERS,
            "it serves other, and tasks of this study go to",
        ),
        (replace(WORKER, age_s=40.0), (), Kind.LEASE, "not heard of for 40 s"),
        (replace(WORKER, version="0.0"), (), Kind.VERSION, "it runs Merlin 0.0"),
        (WORKER, (), Kind.DEPENDENCY, "nothing of its queues (hot) is left to run"),
        (WORKER, (OpenWork(queue="hot", num_at_once=1, need_s=9000.0),), Kind.WALLTIME, "need 02:30:00"),
        (
            WORKER,
            (OpenWork(queue="hot", num_at_once=1, need=Need(gpus=2.0)),),
            Kind.SIZE,
            "need 2 GPUs, and it has 4 cores and 0 GPUs",
        ),
    ],
)
def test_an_idle_worker_says_why(workspace, worker, work, kind, words) -> None:
    found = why(facts(workspace, worker, work=work))
    assert any(each is kind and words in what for each, what in found), found


def test_a_worker_on_a_bad_node_says_so(workspace: Workspace) -> None:
    found = why(replace(facts(workspace, WORKER), bad_nodes={"n1": "sim"}))
    assert any(kind is Kind.NODE for kind, _ in found)


def test_a_busy_worker_says_what_it_runs_and_one_with_a_free_slot_what_is_on_offer(
    workspace: Workspace,
) -> None:
    running = [RunningChunk(study=study, instance="sim", lo=0, hi=1, since=1.0) for study in ("s1", "s2")]
    busy = facts(workspace, replace(WORKER, running=running))
    story = worker_story([busy], "simw.n1")
    assert (story.exit_code, len(story.running)) == (0, 2)
    assert "all of its 2 slots are busy, 1 of them of other studies" in story.obstacles[0].what
    work = (OpenWork(queue="hot", num_at_once=1),)
    handed = (Handed(chunk=Chunk(instance="sim", lo=4, hi=5), since=NOW, worker="", left_s=0.0),)
    assert (
        "2 free slots, and 1 chunk on offer" in why(facts(workspace, WORKER, work=work, handed=handed))[0][1]
    )
    idle = facts(workspace, WORKER, work=work)
    assert "waits for other tasks" in why(idle)[0][1]
    ending = facts(workspace, replace(WORKER, is_stopping=True), work=work)
    assert [worker_story([each], "simw.n1").exit_code for each in (idle, ending)] == [0, 1]


def test_a_process_of_a_run_that_is_over_is_known_by_what_it_has_done(workspace: Workspace) -> None:
    found = facts_of(workspace)
    story = worker_story([found], "w0")
    assert (story.done.chunks, story.done.ok, story.done.failed, story.host) == (6, 7, 2, "n1")
    assert story.done.steps == ("sim", "post", "learn")
    assert "has ended" in story.obstacles[0].what
    assert story.exit_code == 1, "tasks of the run failed"
    alive = replace(found, holder=Holder(pid=os.getpid(), host="n1", is_here=True))
    assert worker_story([alive], "w0").obstacles == ()


def test_a_word_names_a_step_a_sample_or_a_worker(workspace: Workspace) -> None:
    assert [kind_of([workspace], word) for word in ("sim", "3", "w1")] == ["step", "sample", "worker"]
    members = [facts(workspace, WORKER)]
    assert worker_named(members, "w1") == "w1"
    assert worker_named(members, "celery@simw.n1") == "simw.n1"
    assert worker_named(members, "simw") == "simw.n1"
    with pytest.raises(UsageError, match="did you mean learn"):
        worker_named(members, "learm")


# ------------------------------------------------------------------ steps


def test_a_step_is_told_with_what_it_needs_and_waits_for(workspace: Workspace) -> None:
    explained = explain_study(workspace)
    sim, post = step_story(explained, "sim"), step_story(explained, "post")
    assert (sim.ok, sim.failed, sim.ready, sim.waiting) == (4, 1, 1, 0)
    assert sim.needs == "2 cores, up to 01:00:00"
    assert (post.ready, post.waiting, post.after) == (1, 1, ("the same sample in sim: 1 task open",))
    assert [each.kind for each in post.obstacles] == [Kind.STATE, Kind.DEPENDENCY]
    assert sim.num_workers is None
    assert post.exit_code == 1


def test_a_step_on_workers_counts_them_and_the_chunks_that_they_hold(workspace: Workspace) -> None:
    handed = (Handed(chunk=Chunk(instance="sim", lo=4, hi=5), since=NOW, worker=WORKER.name, left_s=9.0),)
    found = facts(workspace, WORKER, handed=handed)
    story = step_story(StudyExplanation(members=(found,), obstacles=()), "sim")
    assert (story.num_workers, story.running, story.exit_code) == (1, 1, 0)


# ------------------------------------------------------------------ logs


def test_the_logs_of_a_sample_are_the_files_of_its_scripts_and_of_the_worker_that_called_a_function(
    workspace: Workspace,
) -> None:
    sim, post, learn = TaskLogs(workspace, 0, ()).look()
    assert [file.path.relative_to(workspace.path) for file in sim.files] == [
        Path("sim/00/sim.out"),
        Path("sim/00/sim.err"),
    ]
    assert (post.outcome, post.host) == ("ok", "n1")
    assert [(file.path.name, file.is_shared) for file in learn.files] == [("w0.out", True)]
    assert [log.step for log in TaskLogs(workspace, 0, ("post",)).look()] == ["post"]


def test_the_logs_of_failures_have_cause_and_what_the_ledger_has_kept(workspace: Workspace) -> None:
    (only,) = logs_of_failures(workspace)
    assert (only.step, only.task, only.cause, only.tail) == ("sim", 5, "exit code 4", "no luck with 5\n")
    assert list(logs_of_failures(workspace, ("post",))) == []


def test_logs_of_a_sample_that_there_is_not_or_of_a_step_without_one_are_errors(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="0 to 5"):
        TaskLogs(workspace, 6, ())
    with pytest.raises(UsageError, match="say of which"):
        TaskLogs(workspace, None, ("sim",))
