"""What a process may use of its host, and until when."""

import os

import pytest

from merlin.batch.contract import Allocation
from merlin.batch.cores import cgroup_cores, usable_cores
from merlin.batch.devices import visible_gpus
from merlin.batch.here import WALLTIME_END, end_for_children, find_end, find_here
from merlin.errors import ExecutionError

JOB = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "node2"}


def test_outside_of_an_allocation_there_is_only_a_host():
    here = find_here({})
    assert here.host and here.cores == usable_cores() and not (here.scheduler or here.job or here.ends)


def test_a_job_of_few_cores_has_few():
    here = find_here({**JOB, "SLURM_CPUS_ON_NODE": "1", "SLURM_JOB_END_TIME": "1795440670"})
    assert (here.host, here.cores, here.num_nodes, here.ends) == ("node2", 1, 2, 1795440670.0)


def test_the_end_of_the_walltime_is_asked_for_where_the_environment_does_not_say_it(slurm):
    line = "1|RUNNING|2|0|2026-11-23T13:01:00|2026-11-23T13:01:00|2026-11-23T13:31:00|None|node[1-2]|a|\n"
    (slurm.folder / "jobs").write_text(line)
    assert find_end(JOB, client=slurm.client()) == 1795440660.0
    slurm.fail("down")
    assert find_end(JOB, client=slurm.client()) is None


def test_the_end_is_that_of_the_variable_or_of_the_allocation():
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000000"}
    assert find_end({}) is None
    assert find_end(slurm) == 1_700_000_000
    assert find_end(slurm | {WALLTIME_END: "1600000000.5"}) == 1_600_000_000.5
    for text in ("soon", "-1", "nan", "inf"):
        with pytest.raises(ExecutionError, match=WALLTIME_END):
            find_end({WALLTIME_END: text})


def test_children_are_told_the_end_so_that_they_need_not_ask():
    told = end_for_children(Allocation(scheduler="slurm", job="7", ends=1_700_000_000.0))
    assert (
        find_end({"SLURM_JOB_ID": "7", **told})
        == find_here({"SLURM_JOB_ID": "7", **told}).ends
        == 1_700_000_000
    )
    assert find_end({"SLURM_JOB_ID": "8", **told}) is None
    assert find_end(told) is None
    assert end_for_children(None) == {}


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, ("0", "3")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c,MIG-1"}, ("GPU-8932f937-d72c", "MIG-1")),
        ({"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_GPUS": "0-7"}, ("2",)),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, ("0.0", "0.1")),
        ({"SLURM_JOB_GPUS": "0-2,5"}, ("0", "1", "2", "5")),
        ({"CUDA_VISIBLE_DEVICES": "0;rm\n"}, ()),
    ],
)
def test_gpus_are_those_that_the_environment_shows(environment, gpus):
    assert visible_gpus(environment).gpus == gpus


def test_cores_are_those_of_the_mask_at_most():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
    assert usable_cores(1) == 1


@pytest.mark.parametrize(
    ("files", "own", "cores"),
    [
        ({"a/b/cpu.max": "150000 100000"}, "0::/a/b\n", 1.5),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, "0::/a/b\n", 2.0),
        ({"cpu,cpuacct/x/cpu.cfs_quota_us": "50000"}, "3:cpu,cpuacct:/x\n2:memory:/y\n", 0.5),
        ({"cpu/x/cpu.cfs_quota_us": "-1"}, "3:cpu:/x\n", None),
        ({"a/cpu.max": "garbled"}, "0::/a\n", None),
        ({}, "nonsense\n\n", None),
    ],
)
def test_a_cgroups_quota_counts(tmp_path, files, own, cores):
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith("cfs_quota_us"):
            path.with_name("cpu.cfs_period_us").write_text("100000")
    (tmp_path / "own").write_text(own)
    assert cgroup_cores(tmp_path / "cgroup", tmp_path / "own") == cores
