"""Tasks that are tried again: what an earlier try, or somebody else, has left must not count for them."""

from __future__ import annotations

from typing import Any

import pytest
from chunk_bench import Bench
from study_on_disk import step

from merlin.shards.reading.reader import open_shards
from merlin.study.plan import Aggregate, Field, StepInstance, StepKind
from merlin.study.tasks import Outcome

OK, FAILED = Outcome.OK, Outcome.FAILED
PACK = StepInstance(
    id="a",
    step="a",
    kind=StepKind.AGGREGATE,
    num_tasks=1,
    per_sample=False,
    aggregate=Aggregate(
        sources=("s",), fields=(Field(name="y", file="out*/y.json", key="y"),), samples_per_shard=10
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


def test_only_files_inside_the_directory_are_set_aside(make: Any) -> None:
    fields = (Field(name="y", file="../shared.json", key="y"), Field(name="z", file="z.json", key="z"))
    aggregate = Aggregate(sources=("s",), fields=fields, samples_per_shard=10)
    pack = StepInstance(
        id="a", step="a", kind=StepKind.AGGREGATE, num_tasks=1, per_sample=False, aggregate=aggregate
    )
    bench = make(step("s", 1, command="echo '{\"z\": 1}' > z.json\n", feeds=("a",)), pack)
    shared = bench.folder(0).parent / "shared.json"
    shared.parent.mkdir(parents=True, exist_ok=True)
    shared.write_text('{"y": 1}')
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    assert bench.run(0, 1).runs == ((0, 1, OK),)
    assert shared.exists()
    assert (bench.folder(0) / ".try1/z.json").exists()


# ------------------------------------------------------------------ values in the environment


def test_a_value_may_be_taken_from_the_environment(make: Any, fresh: bool) -> None:
    bench = make(step("s", 2, command='echo "x is $MERLIN_VALUE_X"\n', fresh_shell=fresh))
    assert bench.run(0, 2).runs == ((0, 2, OK),)
    assert (bench.folder(1) / "s.out").read_text() == "x is 1.0\n"
