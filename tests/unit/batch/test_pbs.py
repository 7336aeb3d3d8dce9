"""The words, jobs and allocations of PBS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from merlin.batch.contract import Allocation, Job, JobState
from merlin.batch.pbs import Pbs
from merlin.testing.schedulers import SchedulerContract

AT = 1795438860.0  # 13:01:00


def _listed(**jobs: dict[str, Any]) -> str:
    named = {f"{name[1:]}.pbs": attributes for name, attributes in jobs.items()}
    return json.dumps(
        {"timestamp": 1795438931, "pbs_version": "23.06.06", "pbs_server": "pbs", "Jobs": named}
    )


def _over(code: int | None, substate: int = 92) -> dict[str, Any]:
    return {"job_state": "F", "substate": substate, **({} if code is None else {"Exit_status": code})}


class TestPbs(SchedulerContract):
    scheduler = Pbs()
    mentions = ("study-workers-1", "physics", "-q maintenance", "/a/b c/")
    unwritten = ("queue",)  # a reservation is a queue of its own
    submitted = [
        ("31.pbs\n", "31.pbs"),
        ("31[].pbs-server.site\n", "31[].pbs-server.site"),
        ("hello\n32\n", "32"),
    ]
    listed = [
        ("", []),
        (
            _listed(
                j31={
                    "Job_Name": "a", "job_state": "R", "ctime": "Mon Nov 23 13:01:00 2026",
                    "stime": "Mon Nov 23 13:01:10 2026", "exec_host": "node1/0*2+node1/1*2+node2/0*2",
                    "Resource_List": {"nodect": 2, "walltime": "00:30:00"},
                },
                j32={"Job_Name": "b", "job_state": "Q", "comment": "Not Running: Insufficient amount of resource"},
                j33=_over(0), j34=_over(7), j35=_over(-29, 93), j36=_over(271, 91), j37=_over(None, 91), j38=_over(-4),
                j39={"job_state": "WEIRD"}, j40={"job_state": "H"},
            ),
            [
                Job(
                    id="31.pbs", name="a", state=JobState.RUNNING, num_nodes=2, hosts=("node1", "node2"),
                    submitted=AT, started=AT + 10, ends=AT + 1810,
                ),
                Job(
                    id="32.pbs", name="b", state=JobState.PENDING,
                    reason="Not Running: Insufficient amount of resource",
                ),
                Job(id="33.pbs", state=JobState.OK, exit_code=0),
                Job(id="34.pbs", state=JobState.FAILED, exit_code=7),
                Job(id="35.pbs", state=JobState.TIMEOUT),
                Job(id="36.pbs", state=JobState.CANCELLED),
                Job(id="37.pbs", state=JobState.CANCELLED),
                Job(id="38.pbs", state=JobState.LOST),
                Job(id="39.pbs"),
                Job(id="40.pbs", state=JobState.PENDING),
            ],
        ),
    ]  # fmt: skip
    environment = {"PBS_JOBID": "31.pbs", "PBS_NUM_NODES": "1", "NCPUS": "8"}
    allocation = Allocation(scheduler="pbs", job="31.pbs", num_nodes=1, cores=8)

    def test_the_hosts_are_those_of_the_node_file(self, tmp_path: Path) -> None:
        (tmp_path / "nodes").write_text("node1\nnode1\nnode2\nnode2\n")
        environment = {**self.environment, "PBS_NODEFILE": str(tmp_path / "nodes")}
        assert self.scheduler.allocation(environment) == Allocation(
            scheduler="pbs", job="31.pbs", num_nodes=2, hosts=("node1", "node2")
        )
