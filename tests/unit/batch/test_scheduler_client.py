"""The client of a scheduler submits each job once, asks seldom, and takes silence for nothing but silence."""

import pytest

from merlin.batch.contract import JobState
from merlin.batch.jobs import LISTED_S
from merlin.errors import SchedulerRefusedError, SchedulerUnreachableError


def test_a_job_is_submitted_seen_and_cancelled(slurm):
    client = slurm.client()
    job = client.submit("one", slurm.script("one"))
    assert client.jobs([job])[job].state == JobState.PENDING
    slurm.set_state(job, "RUNNING")
    slurm.now += 60
    assert client.jobs([job])[job].state == JobState.RUNNING
    client.cancel([job])
    slurm.now += 60
    assert client.jobs([job])[job].state == JobState.CANCELLED
    assert [call.command[0] for call in client.calls] == ["sbatch", "squeue", "squeue", "scancel", "squeue"]


def test_an_answer_that_was_lost_is_looked_up(slurm):
    slurm.fail("lose")
    assert slurm.client().submit("one", slurm.script("one")) == "1"
    assert slurm.num_jobs == 1


def test_what_may_have_been_submitted_is_never_submitted_twice(slurm):
    client = slurm.client()
    slurm.fail("lose")
    slurm.fail("down")
    with pytest.raises(SchedulerUnreachableError, match="Unable to contact slurm controller"):
        client.submit("one", slurm.script("one"))
    with pytest.raises(SchedulerUnreachableError):
        client.submit("one", slurm.script("one"))
    slurm.work_again()
    assert client.submit("one", slurm.script("one")) == "1"
    assert slurm.client().submit("one", slurm.script("one"), is_again=True) == "1"
    assert slurm.num_jobs == 1


def test_a_submission_that_ended_silently_is_repeated_only_when_the_job_would_be_listed(slurm):
    client = slurm.client()
    slurm.fail("die")
    with pytest.raises(SchedulerUnreachableError, match="died of signal 9"):
        client.submit("one", slurm.script("one"))
    slurm.work_again()
    with pytest.raises(SchedulerUnreachableError, match="not known yet"):
        client.submit("one", slurm.script("one"))
    assert slurm.num_jobs == 0
    slurm.now += LISTED_S
    assert client.submit("one", slurm.script("one")) == "1"


def test_a_job_that_is_not_listed_yet_is_not_called_unknown(slurm):
    client = slurm.client()
    job = client.submit("one", slurm.script("one"))
    slurm.forget()
    assert client.jobs([job])[job].state == JobState.PENDING
    slurm.now += LISTED_S
    assert client.jobs([job])[job].state == JobState.UNKNOWN


def test_a_command_that_hangs_is_ended(slurm):
    slurm.fail("hang")
    slurm.fail("down")
    with pytest.raises(SchedulerUnreachableError):
        slurm.client(limit_s=0.2).submit("one", slurm.script("one"))


def test_a_job_that_is_refused_says_why_in_the_schedulers_words(slurm):
    slurm.fail("refuse")
    with pytest.raises(
        SchedulerRefusedError,
        match=r"sbatch failed with exit code 1:\n    sbatch: error: .* Invalid account\n    .*: sbatch --parsable ",
    ):
        slurm.client().submit("one", slurm.script("one"))


@pytest.mark.parametrize("how", ["down", "garbled"])
def test_no_answer_is_an_error_and_is_not_asked_for_again_at_once(slurm, how):
    client = slurm.client()
    job = client.submit("one", slurm.script("one"))
    slurm.fail(how)
    for _ in range(3):
        with pytest.raises(SchedulerUnreachableError, match="squeue"):
            client.jobs([job])
    assert slurm.num_questions == 1
    slurm.work_again()
    slurm.now += 10
    assert client.jobs([job])[job].state == JobState.PENDING


def test_a_scheduler_that_is_not_installed_is_named(slurm, tmp_path):
    (slurm.folder / "squeue").unlink()
    client = slurm.client()
    client._environment["PATH"] = str(tmp_path / "nothing")
    with pytest.raises(SchedulerUnreachableError, match="is Slurm installed here"):
        client.jobs(["1"])


def test_questions_have_a_pace_however_many_ask(slurm):
    client = slurm.client()
    ids = [client.submit(name, slurm.script(name)) for name in ("one", "two", "three")]
    for second in range(60):
        slurm.now = 2000.0 + second
        for job in ids:
            client.jobs([job])
    assert slurm.num_questions == 6


def test_a_job_that_nobody_asked_about_yet_is_not_called_unknown(slurm):
    client = slurm.client()
    job = client.submit("one", slurm.script("one"))
    client.jobs([job])
    other = slurm.client().submit("two", slurm.script("two"))
    assert client.jobs([other])[other].state == JobState.PENDING
    slurm.now += 10
    assert client.jobs([other])[other].name == "two"


def test_a_job_that_is_forgotten_keeps_its_end(slurm):
    client = slurm.client()
    ended, lost = (client.submit(name, slurm.script(name)) for name in ("one", "two"))
    slurm.set_state(ended, "TIMEOUT")
    client.jobs([ended, lost])
    slurm.forget()
    slurm.now += 10
    found = client.jobs([ended, lost])
    assert found[ended].state == JobState.TIMEOUT
    assert found[lost].state == JobState.UNKNOWN and found[lost].name == "two"


def test_jobs_that_are_over_need_no_question(slurm):
    client = slurm.client()
    job = client.submit("one", slurm.script("one"))
    slurm.set_state(job, "COMPLETED")
    for _ in range(3):
        assert client.jobs([job])[job].state == JobState.OK
        slurm.now += 60
    assert slurm.num_questions == 1


def test_cancelling_what_is_over_is_no_error_and_what_is_alive_is_one(slurm):
    client = slurm.client()
    job = client.submit("one", slurm.script("one"))
    slurm.fail("refuse")
    with pytest.raises(SchedulerRefusedError, match="Access denied"):
        client.cancel([job])
    slurm.set_state(job, "COMPLETED")
    client.cancel([job])
    client.cancel([])


def test_habits_of_the_user_do_not_change_what_is_asked(slurm):
    own = {"SQUEUE_PARTITION": "x", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0", "TZ": "Asia/Tokyo"}
    client = slurm.client(SLURM_CONF="/etc/s.conf", SBATCH_ACCOUNT="physics", **own)
    client.submit("one", slurm.script("one"))
    seen = slurm.environment
    assert "SLURM_CONF=/etc/s.conf" in seen and "SBATCH_ACCOUNT=physics" in seen and "TZ=Asia/Tokyo" in seen
    assert not any(f"{name}=" in seen for name in list(own)[:3])
    client.find("one")
    assert "TZ=UTC" in slurm.environment
