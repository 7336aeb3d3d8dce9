"""LSF's words, jobs and allocations."""

from __future__ import annotations

import json

from merlin.batch.contract import Allocation, Job, JobState, LaunchRequest
from merlin.batch.lsf import Lsf, LsfSrun
from merlin.batch.registry import SCHEDULERS, to_ask
from merlin.testing.schedulers import SchedulerContract

NOW = 1795438931


def _listed(*records: dict[str, str]) -> str:
    return f"{NOW}\n" + json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records})


def _record(job: str, stat: str, **more: str) -> dict[str, str]:
    names = [
        "JOB_NAME",
        "EXIT_CODE",
        "EXIT_REASON",
        "NEXEC_HOST",
        "EXEC_HOST",
        "RUN_TIME",
        "TIME_LEFT",
        "PEND_REASON",
    ]
    return {"JOBID": job, "STAT": stat, **dict.fromkeys(names, ""), **more}


class TestLsf(SchedulerContract):
    scheduler = Lsf()
    submitted = [
        ("Job <31> is submitted to queue <pdebug>.\n", "31"),
        ("==> hello\nJob <4711> is submitted to default queue <normal>.\n", "4711"),
    ]
    mentions = ("study-workers-1", "physics", "pdebug", "/a/b c/", "hname!='node23'")
    unwritten = ("procs", "cores_per_task")  # whole nodes
    listed = [
        (f"{NOW}\n", []),
        (f"{NOW}\nNo job found\n", []),
        (
            _listed(
                _record(
                    "31", "RUN", JOB_NAME="a", NEXEC_HOST="2", EXEC_HOST="40*node1:40*node2",
                    RUN_TIME="60 second(s)", TIME_LEFT="1:29 L",
                ),
                _record("32", "PEND", PEND_REASON="Not enough hosts"),
                _record("33", "DONE", NEXEC_HOST="1", EXEC_HOST="node1", RUN_TIME="5 second(s)"),
                _record("34", "EXIT", EXIT_CODE="7"),
                _record("35", "EXIT", EXIT_CODE="140", EXIT_REASON="TERM_RUNLIMIT: job killed after limit"),
                _record("36", "EXIT", EXIT_CODE="130", EXIT_REASON="TERM_OWNER: job killed by owner"),
                _record("37", "ZOMBI"),
                _record("38", "WEIRD"),
                {"JOBID": "39", "ERROR": "Job <39> is not found"},
            ),
            [
                Job(
                    id="31", name="a", state=JobState.RUNNING, num_nodes=2, hosts=("node1", "node2"),
                    started=NOW - 60, ends=NOW + 89 * 60,
                ),
                Job(id="32", state=JobState.PENDING, reason="Not enough hosts"),
                Job(id="33", state=JobState.OK, num_nodes=1, hosts=("node1",), exit_code=0),
                Job(id="34", state=JobState.FAILED, exit_code=7),
                Job(id="35", state=JobState.TIMEOUT, exit_code=140, reason="TERM_RUNLIMIT: job killed after limit"),
                Job(id="36", state=JobState.CANCELLED, exit_code=130, reason="TERM_OWNER: job killed by owner"),
                Job(id="37", state=JobState.LOST),
                Job(id="38"),
            ],
        ),
    ]  # fmt: skip
    environment = {"LSB_JOBID": "31", "LSB_MCPU_HOSTS": "login1 1 node1 40 node2 40"}
    allocation = Allocation(scheduler="lsf", job="31", num_nodes=2, hosts=("node1", "node2"))

    def test_a_list_of_no_json_is_refused(self) -> None:
        for text in (
            "{",
            "[]",
            '{"RECORDS": [{}]}',
            '{"RECORDS": 3}',
            '{"RECORDS": [{"JOBID": "x", "STAT": "RUN"}]}',
        ):
            try:
                self.scheduler.listed_jobs(f"{NOW}\n{text}")
            except ValueError:
                continue
            raise AssertionError(text)


class TestLsfWithSrun(TestLsf):
    scheduler = LsfSrun()

    def test_its_jobs_are_those_of_lsf(self) -> None:
        assert self.allocation.scheduler == LsfSrun().system == Lsf().name
        assert to_ask(["local", "lsf", "lsf-srun", "pbs"]) == [SCHEDULERS["lsf"], SCHEDULERS["pbs"]]

    def test_programs_start_as_under_slurm(self) -> None:
        assert self.scheduler.launch_line(LaunchRequest(procs="4", nodes="2")).startswith("srun -n 4 -N 2")
