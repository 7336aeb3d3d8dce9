"""Flux's words, jobs and allocations; the lists are as `flux jobs` of 0.88 prints them."""

from __future__ import annotations

import pytest

from merlin.batch.contract import Allocation, Job, JobRequest, JobState
from merlin.batch.flux import Flux
from merlin.testing.schedulers import SchedulerContract

LISTED = "\n".join(
    "\x1e" + "\x1f".join(fields)
    for fields in (
        ("ƒi8R5Rq", "R", "2", "node[1-2]", "1795438924.5", "1795438925.5", "1795439014.5", "", "", "", "a b"),
        ("f57jyM5h", "F", "4", "", "1795438932.0", "0.0", "0.0", "1", "alloc", "need 4 nodes", "evil\nline"),
        ("ƒ4pk5agP", "F", "1", "vm", "1795438931.0", "1795438931.5", "0.0", "7", "", "", "sh"),
        ("ƒ4j3ULqV", "TO", "1", "vm", "1795438931.0", "1795438931.5", "1795438932.0", "142", "timeout", "", "s"),
        ("ƒ51TGPks", "CA", "1", "vm", "1795438931.0", "1795438931.5", "0.0", "143", "cancel", "", "sleep"),
        ("ƒ4uDXQzj", "F", "1", "vm", "1795438931.0", "1795438931.5", "0.0", "137", "node-failure", "", "x"),
        ("ƒ2112k11", "S", "1", "", "1795438931.0", "0.0", "0.0", "", "", "", "waits"),
        ("ƒ2112k12", "WEIRD", "", "", "", "", "", "", "", "", "?"),
    )
)  # fmt: skip
AT = 1795438931.0


class TestFlux(SchedulerContract):
    scheduler = Flux()
    submitted = [
        ("ƒi8R5Rq\n", "fi8R5Rq"),
        ("fi8R5Rq", "fi8R5Rq"),
        ("flux-batch: hello\nƒ2112k11\n", "f2112k11"),
    ]
    mentions = ("study-workers-1", "physics", "pdebug", "/a/b c/", "node17,node23")
    listed = [
        ("", []),
        (
            LISTED,
            [
                Job(
                    id="fi8R5Rq", name="a b", state=JobState.RUNNING, num_nodes=2, hosts=("node1", "node2"),
                    submitted=1795438924.5, started=1795438925.5, ends=1795439014.5,
                ),
                Job(
                    id="f57jyM5h", name="evil\nline", state=JobState.FAILED, num_nodes=4, submitted=AT + 1,
                    exit_code=1, reason="alloc: need 4 nodes",
                ),
                Job(
                    id="f4pk5agP", name="sh", state=JobState.FAILED, num_nodes=1, hosts=("vm",), submitted=AT,
                    started=AT + 0.5, exit_code=7,
                ),
                Job(
                    id="f4j3ULqV", name="s", state=JobState.TIMEOUT, num_nodes=1, hosts=("vm",), submitted=AT,
                    started=AT + 0.5, ends=AT + 1, exit_code=142, reason="timeout",
                ),
                Job(
                    id="f51TGPks", name="sleep", state=JobState.CANCELLED, num_nodes=1, hosts=("vm",), submitted=AT,
                    started=AT + 0.5, exit_code=143, reason="cancel",
                ),
                Job(
                    id="f4uDXQzj", name="x", state=JobState.LOST, num_nodes=1, hosts=("vm",), submitted=AT,
                    started=AT + 0.5, exit_code=137, reason="node-failure",
                ),
                Job(id="f2112k11", name="waits", state=JobState.PENDING, num_nodes=1, submitted=AT),
                Job(id="f2112k12", name="?"),
            ],
        ),
    ]  # fmt: skip
    environment = {"FLUX_URI": "local:///run/flux/local", "FLUX_JOB_ID": "ƒgN7vz3", "FLUX_JOB_NNODES": "2"}
    allocation = Allocation(scheduler="flux", job="fgN7vz3", num_nodes=2)

    def test_in_a_batch_script_the_job_is_that_of_the_instance(self) -> None:
        environment = {
            "FLUX_URI": "local:///tmp/x/local-0",
            "FLUX_ENCLOSING_ID": "ƒi8R5Rq",
            "FLUX_JOB_ID": "ƒgN7vz3",
        }
        assert self.scheduler.allocation(environment) == Allocation(scheduler="flux", job="fi8R5Rq")

    def test_a_priority_is_a_word_or_a_share_of_the_highest(self) -> None:
        for priority, urgency in (("held", 0), ("Medium", 16), ("expedited", 31), ("0.5", 16), ("1", 31)):
            lines = self.scheduler.directives(JobRequest(name="a", priority=priority))
            assert f"#flux: --urgency={urgency}" in lines
        for priority in ("very", "2", "-1", "nan"):
            with pytest.raises(ValueError, match="priority"):
                self.scheduler.directives(JobRequest(name="a", priority=priority))

    def test_workers_start_by_flux_exec_in_an_instance_that_may_be_started_first(self) -> None:
        words = self.scheduler.workers_command
        assert words(None, {}) == ["flux", "exec"]
        assert words(1, {"flux_path": "/opt/flux/bin"}) == ["/opt/flux/bin/flux", "exec", "-r", "0"]
        assert words(3, {}) == ["flux", "exec", "-r", "0-2"]
        assert words(3, {"flux_exec": "flux exec -x 0"}) == ["flux", "exec", "-x", "0"]
        own = {"worker_launch": "srun -N 2 -n 2", "flux_start_opts": "-o,-Slog-level=6"}
        start = ["srun", "-N", "2", "-n", "2", "flux", "start", "-o,-Slog-level=6"]
        assert words(2, own) == [*start, "flux", "exec"]
        assert words(2, {**own, "flux_exec_workers": False}) == start
        assert words(2, {"worker_launch": "flux alloc -N 2"}) == ["flux", "alloc", "-N", "2", "flux", "exec"]
