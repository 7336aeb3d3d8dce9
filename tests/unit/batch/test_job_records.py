"""Jobs are written down before they are submitted, and found again by every process."""

import pytest
from msgspec.structs import replace

from merlin.batch.contract import Job, JobRequest, JobState
from merlin.batch.job_records import JobRecord, JobRecords
from merlin.batch.script import job_script, new_job_name
from merlin.batch.slurm import Slurm
from merlin.errors import SchedulerRefusedError, SchedulerUnreachableError, WorkspaceError

RECORD = JobRecord(name="one", scheduler="slurm", created=5.0, reason="nobody serves sim")
REQUEST = JobRequest(name="one", nodes=2, walltime_s=600.0)


@pytest.fixture
def records(tmp_path):
    return JobRecords(tmp_path / "merlin_info" / "jobs")


def submit(records, client):
    return records.submit(client, RECORD, REQUEST, "merlin run-workers x\n", "/bin/sh")


def test_a_submitted_job_is_known_to_every_process(slurm, records):
    record = submit(records, slurm.client())
    assert record.id == "1" and records.read("one") == record
    assert JobRecords(records.folder).all() == [record]
    for state in (JobState.RUNNING, JobState.OK):
        records.write(replace(record, seen=Job(id="1", state=state, hosts=("node1",)), seen_at=6.0))
        (seen,) = records.all()
        assert seen.seen.state == state and seen.seen.hosts == ("node1",)
        assert seen.is_open == (state == JobState.RUNNING)


def test_a_submission_that_was_cut_short_is_continued(slurm, records):
    slurm.fail("lose")
    slurm.fail("down")
    with pytest.raises(SchedulerUnreachableError):
        submit(records, slurm.client())
    assert records.read("one").id == ""
    slurm.work_again()
    assert submit(records, slurm.client()).id == "1"
    assert slurm.num_jobs == 1


def test_a_record_of_an_earlier_merlin_is_read(records):
    records.write(RECORD)
    text = records.path("one").read_text()
    records.path("one").write_text(text.replace('"reason"', '"purpose": "workers", "reason"'))
    assert records.all() == [RECORD]


def test_the_script_may_lie_in_a_directory_whose_name_is_no_text(records):
    record = replace(RECORD, script="/caf\udce9/one.sh")
    records.write(record)
    assert records.read("one") == record


def test_a_refused_job_is_written_down(slurm, records):
    slurm.fail("refuse")
    with pytest.raises(SchedulerRefusedError):
        submit(records, slurm.client())
    assert "Invalid account" in records.read("one").refused


@pytest.mark.parametrize("text", ["", "{}", "[]", "\x00", '{"format": "merlin-job", "version": 2}'])
def test_a_damaged_record_is_named(records, text):
    records.write(RECORD)
    records.path("one").write_text(text)
    with pytest.raises(WorkspaceError, match=r"one.json is no record of a job.*move it away"):
        records.all()


def test_a_script_begins_with_its_directives():
    assert job_script(Slurm(), REQUEST, "\nexec a\n\n", shell="/bin/bash -l") == (
        "#!/bin/bash -l\n#SBATCH --job-name=one\n#SBATCH --nodes=2\n"
        "#SBATCH --time=00:10:00\n#SBATCH --no-requeue\n\n\nexec a\n"
    )


@pytest.mark.parametrize(("shell", "body"), [("bash", ""), ("/bin/sh\x1b", ""), ("/bin/sh", "a\x00b")])
def test_what_no_script_can_hold_is_refused(shell, body):
    with pytest.raises(ValueError):
        job_script(Slurm(), REQUEST, body, shell=shell)


@pytest.mark.parametrize("parts", [("a b/c",), ("",), ("7",), ("é" * 9,), ("x" * 200, "sim")])
def test_names_of_jobs_are_fit_for_every_scheduler(parts):
    names = {new_job_name(*parts) for _ in range(20)}
    assert len(names) == 20
    assert all(JobRequest(name=name).name == name for name in names)
