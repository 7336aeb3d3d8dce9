"""Slurm's launch lines, directives, jobs and allocations."""

import pytest

from merlin.batch.contract import Allocation, Job, JobRequest, JobState, LaunchRequest
from merlin.batch.slurm import Slurm, slurm_state
from merlin.testing.schedulers import SchedulerContract

LISTED = """\
31|RUNNING|2|0|2026-11-23T13:01:00|2026-11-23T13:01:10|2026-11-23T13:31:10|None|node[1-2]|study-1|
32|PENDING|4|0|2026-11-23T13:01:00|2026-11-24T00:00:00|N/A|(Resources)||study-2|
33|FAILED|1|25600|2026-11-23T13:01:00|2026-11-23T13:01:10|2026-11-23T13:02:10|NonZeroExitCode|node3|a | b|
34_[1-9]|WEIRD|1|0|2026-11-23T13:01:00|N/A|N/A|None|(null)|x|
35|CANCELLED|1|15|2026-11-23T13:01:00|N/A|N/A|None||y|
"""
AT = 1795438860.0  # 13:01:00


class TestSlurm(SchedulerContract):
    scheduler = Slurm()
    submitted = [("31\n", "31"), ("31;cluster\n", "31"), ("sbatch: lua: hello\n\n32\n", "32")]
    listed = [
        (
            LISTED,
            [
                Job(
                    id="31",
                    name="study-1",
                    state=JobState.RUNNING,
                    num_nodes=2,
                    hosts=("node1", "node2"),
                    submitted=AT,
                    started=AT + 10,
                    ends=AT + 1810,
                ),
                Job(
                    id="32",
                    name="study-2",
                    state=JobState.PENDING,
                    num_nodes=4,
                    submitted=AT,
                    reason="(Resources)",
                ),
                Job(
                    id="33",
                    name="a | b",
                    state=JobState.FAILED,
                    num_nodes=1,
                    hosts=("node3",),
                    submitted=AT,
                    started=AT + 10,
                    ends=AT + 70,
                    exit_code=100,
                    reason="NonZeroExitCode",
                ),
                Job(id="34_[1-9]", name="x", num_nodes=1, submitted=AT, exit_code=0),
                Job(
                    id="35",
                    name="y",
                    state=JobState.CANCELLED,
                    num_nodes=1,
                    submitted=AT,
                    exit_code=143,
                ),
            ],
        ),
        ("", []),
    ]
    environment = {
        "SLURM_JOB_ID": "31",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": "node[1-2],big07",
        "SLURMD_NODENAME": "node2",
        "SLURM_CPUS_ON_NODE": "36",
        "SLURM_JOB_END_TIME": "1795440670",
    }
    allocation = Allocation(
        scheduler="slurm",
        job="31",
        num_nodes=3,
        hosts=("node1", "node2", "big07"),
        host="node2",
        cores=36,
        ends=1795440670.0,
    )
    mentions = [
        "--job-name=study-workers-1",
        "--nodes=3",
        "--cpus-per-task=7",
        "--gres=gpu:2",
        "--time=01:30:00",
        "--account=physics",
        "--partition=pdebug",
        "--reservation=maintenance",
        "--qos=standby",
        "--exclusive",
        "--exclude=node17,node23",
        "--output='/a/b c/100%%.out'",
        "--error='/a/b c/100%%.err'",
        "--requeue",
        "--open-mode=append",
    ]


@pytest.mark.parametrize(
    ("step", "flags"),
    [
        ({}, ""),
        ({"cores per task": 3, "gpus per task": 0}, " -c 3"),
        ({"gpus": 4}, " --gpus=4"),
        ({"gpus per task": 1, "walltime": "5:00"}, " --gpus-per-task=1 -t 00:05:00"),
        ({"walltime": "3600"}, " -t 01:00:00"),
        ({"walltime": "1-00:00:00"}, " -t 24:00:00"),
        ({"walltime": "inf"}, ""),
        ({"exclusive": True}, ""),  # of the allocation
        ({"exclusive": True, "exclusive.launcher": "true"}, " --exclusive"),
        ({"reservation": "a b", "qos": "high"}, " --reservation='a b' --qos=high"),
        ({"slurm": "--mpi=none  --x='a  b'", "flux": "-o x", "bind": "rs"}, " --mpi=none  --x='a  b'"),
    ],
)
def test_srun_has_the_steps_resources(step, flags):
    request = LaunchRequest(procs="8", nodes="2", resources=step)
    assert Slurm().launch_line(request) == f"srun -n 8 -N 2{flags}"


def test_programs_that_share_a_node_take_no_more_than_they_ask_for():
    assert Slurm().side_by_side({}) == {"SLURM_EXACT": "1"}
    of_job = {"SLURM_MEM_PER_NODE": "4096"}  # which an srun would ask for as a whole
    assert Slurm().side_by_side(of_job) == {"SLURM_EXACT": "1", "SLURM_MEM_PER_NODE": "0"}


def test_without_nodes_slurm_decides():
    assert Slurm().launch_line(LaunchRequest(procs="8")) == "srun -n 8"


def test_a_job_with_processes_says_how_many():
    lines = Slurm().directives(JobRequest(name="a", nodes=2, procs=8))
    assert lines == [
        "#SBATCH --job-name=a",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks=8",
        "#SBATCH --no-requeue",
    ]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("cg", JobState.RUNNING),
        ("CF", JobState.RUNNING),
        ("PREEMPTED", JobState.LOST),
        ("NF", JobState.LOST),
        ("RQ", JobState.PENDING),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("DL", JobState.TIMEOUT),
        ("CD", JobState.OK),
        ("", JobState.UNKNOWN),
    ],
)
def test_states_have_long_and_short_names(text, state):
    assert slurm_state(text) == state


def test_names_of_other_jobs_may_be_anything():
    record = "5|RUNNING|1|0|2026-11-23T13:01:00|N/A|N/A|None|node1|{}|\n"
    names = ["a\nb | c", "", "x|", "7|x", "\x1b[0m ü", "\n\n"]
    found = Slurm().listed_jobs("".join(map(record.format, names)))
    assert [job.name for job in found] == [name.strip() for name in names]


@pytest.mark.parametrize(
    "rest", ["5", "5|RUN", "5|RUNNING|1|0|", "5|RUNNING|1|0|2026-11-23T13:01:00|N/A|N/A|None|node1|b"]
)
def test_a_list_that_was_cut_short_is_refused(rest):
    with pytest.raises(ValueError, match="squeue did not list a job"):
        Slurm().listed_jobs(f"4|RUNNING|1|0|2026-11-23T13:01:00|N/A|N/A|None|node1|a|\n{rest}")
