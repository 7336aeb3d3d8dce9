"""Tasks that are tried again: what an earlier try, or somebody else, has left must not count for them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chunk_bench import Bench
from msgspec.structs import replace
from small_plans import step
from waiting import wait_until

from merlin.execution.task_files import set_aside
from merlin.plan.plan import Aggregate, PlannedField, StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.ensemble import open_shards

OK, FAILED = Outcome.OK, Outcome.FAILED
PACK = StepInstance(
    id="a",
    step="a",
    kind=StepKind.AGGREGATE,
    num_tasks=1,
    per_sample=False,
    aggregate=Aggregate(
        sources=("s",), fields=(PlannedField(name="y", file="out*/y.json", key="y"),), samples_per_shard=10
    ),
)


def values(bench: Bench) -> list[float]:
    with open_shards(bench.workspace.path / "a") as ens:
        return list(ens["y"][:].tolist())


@pytest.mark.parametrize("how", ["by hand", "by its own script", "in a directory that is a link"])
def test_a_finish_mark_alone_means_nothing(make: Any, fresh: bool, how: str) -> None:
    copy = "touch MERLIN_FINISHED\n" if how == "by its own script" else ""
    bench = make(step("s", 2, command=f"{copy}[ $(X) != 1.0 ]\n", fresh_shell=fresh))
    folder = bench.folder(1)
    if how == "by hand":
        folder.mkdir(parents=True)
        (folder / "MERLIN_FINISHED").touch()
    elif how == "in a directory that is a link":
        bench.run(0, 1)
        folder.symlink_to(bench.folder(0))
    assert bench.run(1, 2).runs == ((1, 2, FAILED),)
    assert not (folder / "MERLIN_FINISHED").exists()


def test_what_an_earlier_try_said_and_made_is_set_aside(make: Any, fresh: bool) -> None:
    command = (
        "mkdir -p out_1 && echo step >> checkpoint\n"
        'n=$(wc -l < checkpoint)\necho "try $n"\necho "trouble $n" >&2\n'
        "case $n in 1) echo '{\"y\": -1}' > out_1/y.json; exit 104;; 2) exit 1;; esac\n"
        "echo '{\"y\": 3}' > out_1/y.json\n"
    )
    bench = make(step("s", 1, command=command, feeds=("a",), fresh_shell=fresh), PACK)
    again = bench.run(0, 1).deferred[0].chunk
    assert bench.runner.run(again).runs == ((0, 1, FAILED),)
    assert bench.failures()[0].tail == "trouble 2\n"
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    folder = bench.folder(0)
    assert (folder / "checkpoint").read_text() == "step\n" * 3
    assert [(folder / f"{d}s.out").read_text() for d in (".try1/", ".try2/", "")] == [
        "try 1\n",
        "try 2\n",
        "try 3\n",
    ]
    assert (folder / ".try1/s.err").read_text() == "trouble 1\n"
    assert (folder / ".try1/out_1/y.json").read_text() == '{"y": -1}\n'
    assert bench.run(0, 1, "a").runs == ((0, 1, OK),)


def test_the_output_of_a_try_that_failed_is_not_collected(make: Any, fresh: bool) -> None:
    command = (
        "mkdir -p out_1\nif [ -e tried ]; then exit 0; fi\n"
        "touch tried\necho '{\"y\": -1}' > out_1/y.json\nexit 104\n"
    )
    bench = make(step("s", 1, command=command, feeds=("a",), fresh_shell=fresh), PACK)
    again = bench.run(0, 1).deferred[0].chunk
    assert bench.runner.run(again).runs == ((0, 1, FAILED),)
    assert "found none" in bench.failures()[0].cause


def test_a_task_that_goes_on_keeps_its_files_and_what_it_said(make: Any, fresh: bool) -> None:
    command = (
        "mkdir -p out_1\nif [ -e half ]; then echo more; echo worse >&2; exit 3; fi\n"
        "touch half; echo begun; echo bad >&2\necho '{\"y\": 1}' > out_1/y.json\nexit 100\n"
    )
    bench = make(step("s", 1, command=command, feeds=("a",), fresh_shell=fresh), PACK)
    again = bench.run(0, 1).deferred[0].chunk
    assert again.use_restart
    assert bench.runner.run(again).runs == ((0, 1, FAILED),)
    folder = bench.folder(0)
    assert (folder / "s.out").read_text() == "begun\nmore\n"
    assert (folder / "s.err").read_text() == "bad\nworse\n"
    assert bench.failures()[0].tail == "worse\n"
    assert (folder / "out_1/y.json").exists()
    assert not (folder / ".try1").exists()


def test_a_script_for_restarts_adds_to_what_it_has_said(make: Any, fresh: bool) -> None:
    restart = "echo again\n[ -e third ] || { touch third; exit 100; }\n"
    bench = make(step("s", 1, command="echo first; exit 100\n", restart=restart, fresh_shell=fresh))
    second = bench.run(0, 1).deferred[0].chunk
    third = bench.runner.run(second).deferred[0].chunk
    assert bench.runner.run(third).runs == ((0, 1, OK),)
    assert (bench.folder(0) / "s.restart.out").read_text() == "again\nagain\n"
    assert (bench.folder(0) / "s.out").read_text() == "first\n"


def packing(file: str) -> StepInstance:
    """An aggregate of `s` that takes its only field from `file`."""
    return replace(
        PACK,
        aggregate=Aggregate(
            sources=("s",), fields=(PlannedField(name="y", file=file, key="y"),), samples_per_shard=10
        ),
    )


def test_what_was_set_aside_is_not_collected(make: Any, fresh: bool) -> None:
    command = "[ ! -e tried ] || exit 0\ntouch tried\necho '{\"y\": -1}' > y.json\nexit 104\n"
    bench = make(step("s", 1, command=command, feeds=("a",), fresh_shell=fresh), packing("**/y.json"))
    again = bench.run(0, 1).deferred[0].chunk
    assert bench.runner.run(again).runs == ((0, 1, FAILED),)
    assert (bench.folder(0) / ".try1/y.json").exists()


@pytest.mark.parametrize("file", ["../shared.json", "link/y.json"])
def test_only_files_inside_the_directory_are_set_aside(make: Any, tmp_path: Path, file: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    command = f"ln -sfn {other} link\n"
    bench = make(step("s", 1, command=command, feeds=("a",)), packing(file))
    for place in (other / "y.json", bench.folder(0).parent / "shared.json"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('{"y": 1}')
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    assert (other / "y.json").exists() and (bench.folder(0).parent / "shared.json").exists()


def test_a_directory_and_what_is_in_it_are_set_aside_together(make: Any) -> None:
    bench = make(step("s", 1, command="mkdir -p out; echo '{\"y\": 1}' > out/y.json\n"), PACK)
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    set_aside(str(bench.folder(0)), ["out/y.json", "ou*"])
    assert (bench.folder(0) / ".try1/out/y.json").exists() and not (bench.folder(0) / "out").exists()


def test_a_try_that_did_not_end_ok_leaves_nothing_running(make: Any, fresh: bool) -> None:
    command = "if [ -e tried ]; then exit 0; fi\ntouch tried\nsleep 1000 &\necho $! > child\nexit 104\n"
    bench = make(step("s", 1, command=command, fresh_shell=fresh))
    again = bench.run(0, 1).deferred[0].chunk
    child = int((bench.folder(0) / "child").read_text())
    wait_until(lambda: not is_running(child))
    assert bench.runner.run(again).runs == ((0, 1, OK),)


def test_what_an_ok_task_has_left_running_is_its_own_business(make: Any, fresh: bool) -> None:
    bench = make(step("s", 1, command="sleep 1000 &\necho $! > child\n", fresh_shell=fresh))
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    child = int((bench.folder(0) / "child").read_text())
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "last",
    [
        "rm -rf $(WORKSPACE)",
        "rm -rf $(WORKSPACE); touch $(WORKSPACE)",
        "mkdir MERLIN_FINISHED",
        "ln -s nowhere/at/all MERLIN_FINISHED",
        "rm s.err; mkdir s.err",
        "mkfifo MERLIN_FINISHED",
    ],
)
@pytest.mark.parametrize("code", [0, 3])
def test_what_a_task_does_to_its_directory_stops_nobody_else(
    make: Any, fresh: bool, last: str, code: int
) -> None:
    bench = make(step("s", 2, command=f"[ $(X) = 0.0 ] || exit 0\n{last}\nexit {code}\n", fresh_shell=fresh))
    assert bench.run(0, 2).runs == (((0, 2, OK),) if code == 0 else ((0, 1, FAILED), (1, 2, OK)))


def test_a_mark_that_is_a_link_is_replaced_and_its_target_kept(make: Any) -> None:
    bench = make(step("s", 1, command="echo precious > precious; ln -s precious MERLIN_FINISHED\n"))
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    assert (bench.folder(0) / "precious").read_text() == "precious\n"
    assert (bench.folder(0) / "MERLIN_FINISHED").is_file()
    assert not (bench.folder(0) / "MERLIN_FINISHED").is_symlink()


def test_a_pipe_is_no_output(make: Any) -> None:
    bench = make(step("s", 1, command="mkfifo y.json\n", feeds=("a",)), packing("y.json"))
    assert bench.run(0, 1).runs == ((0, 1, FAILED),)
    assert "found what is no regular file" in bench.failures()[0].cause


def test_a_task_out_of_time_has_not_chosen_how_it_ends(make: Any, fresh: bool) -> None:
    command = "trap 'exit 101' TERM\nwhile true; do sleep 0.1; done\n"
    bench = make(step("s", 1, command=command, timeout_s=0.3, fresh_shell=fresh))
    assert bench.run(0, 1).runs == ((0, 1, FAILED),)


# ------------------------------------------------------------------ values in the environment


def test_a_value_may_be_taken_from_the_environment(make: Any, fresh: bool) -> None:
    bench = make(step("s", 2, command='echo "x is $MERLIN_VALUE_X"\n', fresh_shell=fresh))
    assert bench.run(0, 2).runs == ((0, 2, OK),)
    assert (bench.folder(1) / "s.out").read_text() == "x is 1.0\n"


@pytest.mark.parametrize("num", [12_000, 140_000])
def test_a_value_of_any_length_concerns_its_own_task_alone(make: Any, num: int) -> None:
    bench = make(step("s", 3, command='printf %s "$MERLIN_VALUE_X" > v\n'))
    values = np.array([["a"], ["'" * num], ["b"]])
    np.save(bench.workspace.path / "merlin_info/samples.npy", values)
    too_long = num > 131_000  # for one variable, says the kernel
    runs = bench.run(0, 3).runs
    assert runs == (((0, 1, OK), (1, 2, FAILED), (2, 3, OK)) if too_long else ((0, 3, OK),))
    assert (bench.folder(2) / "v").read_text() == "b"
    if not too_long:
        assert (bench.folder(1) / "v").read_text() == "'" * num
