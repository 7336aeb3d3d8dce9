"""Walltimes, lists of hosts, and what a job request refuses."""

import pytest

from merlin.batch import walltime
from merlin.batch.contract import JobRequest
from merlin.batch.hostlist import expand_hosts
from merlin.batch.registry import SCHEDULERS, find_allocation, scheduler_of
from merlin.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:30:00", 5400),
        ("90", 90),
        (90.5, 90.5),
        ("05:30", 330),
        ("2-12:00:00", 216000),
        ("2:12:00:00", 216000),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("90m", 5400),
        ("90min", 5400),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1800s", 1800),
        ("1d", 86400),
        ("INFINITE", None),
    ],
)
def test_walltimes_are_read_as_users_write_them(text, seconds):
    assert walltime.walltime_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "00:00:00", "-1", "an hour", "1:2:3:4:5", "9" * 30, "1e3", "nan"])
def test_what_is_no_walltime_is_refused(text):
    with pytest.raises(ValueError, match="walltime"):
        walltime.walltime_seconds(text)


def test_walltimes_are_written_rounded_up():
    assert walltime.as_clock(90061.2) == "25:01:02"
    assert walltime.as_hours_and_minutes(3601) == "01:01"
    assert walltime.as_seconds(1799.5) == "1800s"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("node1", ("node1",)),
        ("node[1-3,7],login2", ("node1", "node2", "node3", "node7", "login2")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]n[1-2].x", ("r1n1.x", "r1n2.x", "r2n1.x", "r2n2.x")),
        ("a,b,a", ("a", "b")),
    ],
)
def test_lists_of_hosts_are_expanded(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["n[1-", "n[2-1]", "n[1-9999999999]", "n]", "a b", "n[x]", "a[1-90000],b[1-90000]"]
)
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(ValueError, match="host"):
        expand_hosts(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"name": ""},
        {"name": "a\n#SBATCH --uid=0"},
        {"bank": "a\nb"},
        {"output": "a\x1b"},
        {"excluded_hosts": ("a,b",)},
        {"nodes": 0},
        {"walltime_s": -1.0},
        {"walltime_s": float("nan")},
    ],
)
def test_a_job_that_no_script_can_hold_is_refused(wrong):
    with pytest.raises(ValueError):
        JobRequest(**{"name": "a", **wrong})


def test_schedulers_have_names():
    assert all(scheduler_of(name).name == name for name in SCHEDULERS)
    with pytest.raises(UsageError, match="did you mean 'slurm'"):
        scheduler_of("slurn")


def test_an_allocation_is_found_by_its_environment():
    found = find_allocation({"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"})
    assert found is not None and (found.scheduler, found.num_nodes) == ("slurm", 2)
    assert find_allocation({}) is None
