"""Which workers a spec asks for here, and the lines that start them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from merlin.batch.contract import Allocation
from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.errors import UsageError
from merlin.execution.distributed.launch import (
    Launch,
    SpecWorker,
    WorkerSelection,
    launches,
    plain_queue,
    queues_by_step,
    queues_of,
    select_workers,
    with_free_name,
    with_more_args,
    worker_command,
)
from merlin.spec.load import load_spec
from merlin.spec.model import Batch, Document

STUDY = """
description: {name: x, description: x}
batch: {BATCH}
study:
  - {name: sim, run: {cmd: "true", task_queue: simq}}
  - {name: post, run: {cmd: "true", depends: [sim], task_queue: postq}}
  - {name: end, run: {cmd: "true", depends: [post_*]}}
merlin: {resources: {overlap: OVERLAP, workers: WORKERS}}
"""


def document(tmp_path: Path, workers: str, *, overlap: str = "false", batch: str = "type: local") -> Document:
    path = tmp_path / "x.yaml"
    path.write_text(STUDY.replace("WORKERS", workers).replace("OVERLAP", overlap).replace("BATCH", batch))
    return load_spec(path).document


def select(tmp_path: Path, workers: str, **how) -> WorkerSelection:
    made = document(tmp_path, workers, **{k: how.pop(k) for k in ("overlap", "batch") if k in how})
    return select_workers(made, queues_by_step(made), **{"host": "node7.lab", **how})


def names(selection: WorkerSelection) -> dict[str, tuple[str, ...]]:
    return {worker.name: worker.queues for worker in selection.start}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = find_config({"MERLIN_BROKER_URL": "redis://:geheim@localhost:1/0", "HOME": str(tmp_path)})
    assert made is not None
    return made


def words(line: list[str] | tuple[str, ...]) -> str:
    return " ".join(line)


# ------------------------------------------------------------------ selection


def test_without_a_workers_block_one_worker_serves_every_queue(tmp_path):
    assert names(select(tmp_path, "{}")) == {"default_worker": ("simq", "postq", "merlin")}


def test_workers_serve_the_queues_of_their_steps_and_the_rest_gets_a_default_worker(tmp_path):
    found = names(select(tmp_path, "{a: {steps: [sim]}}"))
    assert found == {"a": ("simq",), "default_worker": ("postq", "merlin")}


def test_steps_choose_workers_and_narrow_their_queues(tmp_path):
    selection = select(tmp_path, "{a: {steps: [sim, post]}, b: {steps: [end]}}", steps=["post"])
    assert names(selection) == {"a": ("postq",)}
    assert [(s.name, s.reason) for s in selection.skipped] == [("b", "it serves only end")]


def test_all_means_every_step(tmp_path):
    assert names(select(tmp_path, "{a: {steps: [all]}}", steps=["all"])) == {"a": ("simq", "postq", "merlin")}


def test_a_step_that_does_not_exist_is_named_with_those_that_do(tmp_path):
    with pytest.raises(UsageError, match="no step 'smi'; it has: sim, post, end"):
        select(tmp_path, "{}", steps=["smi"])


def test_a_worker_for_other_machines_is_left_out(tmp_path):
    workers = (
        "{here: {steps: [sim], machines: [node7]}, there: {steps: [post, end], machines: [node8, node9]}}"
    )
    selection = select(tmp_path, workers)
    assert names(selection) == {"here": ("simq",)}
    assert "node8, node9" in selection.skipped[0].reason
    assert "node7.lab" in selection.skipped[0].reason


def test_without_overlap_a_queue_has_one_worker_and_with_it_many(tmp_path):
    workers = "{a: {steps: [sim, post]}, b: {steps: [post, end]}, c: {steps: [sim]}}"
    assert names(select(tmp_path, workers)) == {"a": ("simq", "postq"), "b": ("merlin",)}
    both = select(tmp_path, workers, overlap="true", served={"simq": "x.node7"})
    assert names(both) == {"a": ("simq", "postq"), "b": ("postq", "merlin"), "c": ("simq",)}


def test_queues_with_a_live_worker_on_this_host_are_not_served_again(tmp_path):
    selection = select(
        tmp_path, "{a: {steps: [sim]}, b: {steps: [post, end]}}", served={"simq": "a.node7.lab"}
    )
    assert names(selection) == {"b": ("postq", "merlin")}
    assert "a.node7.lab" in selection.skipped[0].reason


def test_a_step_without_a_queue_of_its_own_uses_merlins(tmp_path):
    made = document(tmp_path, "{}")
    assert queues_of(queues_by_step(made), ["end"]) == ("merlin",)
    assert queues_of(queues_by_step(made)) == ("simq", "postq", "merlin")


def test_a_second_worker_of_a_name_is_numbered(tmp_path):
    (worker,) = select(tmp_path, "{a: {}}").start
    assert with_free_name(worker, []).name == "a"
    assert with_free_name(worker, ["a", "a-2", "b"]).name == "a-3"


# --------------------------------------------------------------- command lines


def spec_worker(args: str = "", **batch) -> SpecWorker:
    more = {key: batch.pop(key) for key in ("nodes",) if key in batch}
    return SpecWorker(
        name="simw", queues=("simq", "postq"), batch=Batch(**batch), args=tuple(args.split()), **more
    )


def test_a_line_has_our_defaults_and_the_namespace(config):
    line = worker_command(config, spec_worker(), num_cores=4)
    queues = ",".join(f"[merlin]_{name}@{config.namespace}" for name in ("simq", "postq"))
    assert line == [
        *(sys.executable, "-P", "-m", "merlin.celery", "-A", "merlin", "worker"),
        *("-n", "simw.%h", "-Q", queues, "--pool", "threads", "--concurrency", "4", "-l", "INFO"),
    ]
    assert "geheim" not in words(line)


@pytest.mark.parametrize(
    ("args", "ours_that_yields"),
    [
        ("-l DEBUG", "-l INFO"),
        ("-lDEBUG", "-l INFO"),
        ("--loglevel=DEBUG", "-l INFO"),
        ("--concurrency 2", "--concurrency 4"),
        ("--concurrency=2", "--concurrency 4"),
        ("-c2", "--concurrency 4"),
        ("-n me.%h", "-n simw.%h"),
        ("--hostname=me@%h", "-n simw.%h"),
        ("--pool solo", "--pool threads"),
        ("-P solo", "--pool threads"),
    ],
)
def test_arguments_of_the_spec_win_over_ours(config, args, ours_that_yields):
    line = words(worker_command(config, spec_worker(args), num_cores=4))
    assert line.endswith(args)
    assert ours_that_yields not in line.replace(args, "")


def test_arguments_like_upstreams_pass_as_they_are(config):
    args = "-O fair --prefetch-multiplier 1 -E -l info --concurrency 20 --logfile=%%p.log"
    line = words(worker_command(config, spec_worker(args), num_cores=4))
    assert line.endswith(args)
    assert "--concurrency 4" not in line


def test_the_command_lines_arguments_come_last_so_that_they_win(config):
    worker = with_more_args(spec_worker("--concurrency 2"), ["--concurrency", "8"])
    assert words(worker_command(config, worker)).endswith("--concurrency 2 --concurrency 8")
    assert not worker.note


@pytest.mark.parametrize(
    ("args", "more", "expected"),
    [
        ("--autoscale=4,1", "", "--concurrency 4"),
        ("--autoscale 1,4 -E", "-c 9", "-E -c 9 --concurrency 4"),  # as in Celery
        ("--autoscale 4,1", "--autoscale=3", "--concurrency 3"),
        ("-c 2", "--autoscale 3", "-c 2 --concurrency 3"),
    ],
)
def test_an_automatic_number_of_tasks_at_once_is_its_maximum_and_the_user_is_told(args, more, expected):
    worker = with_more_args(spec_worker(args), more.split())
    assert words(worker.args) == expected
    on_nodes = replace(worker, batch=Batch(type="slurm"))
    for found in (*launch(worker), *launch(on_nodes, allocation=ALLOCATION)):
        assert found.note.endswith(f"means {expected[expected.index('--con') :]} here")


def test_an_autoscale_that_celery_refuses_stays():
    assert with_more_args(spec_worker("-c 2 --autoscale"), ["3,x"]).args == ("-c", "2", "--autoscale", "3,x")


def test_dollars_in_arguments_are_filled_from_the_environment(tmp_path):
    selection = select(tmp_path, "{a: {args: '--concurrency $CONC -n $OTHER'}}", environment={"CONC": "3"})
    assert selection.start[0].args == ("--concurrency", "3", "-n", "$OTHER")


def test_an_open_quote_is_an_error_that_shows_the_arguments(tmp_path):
    with pytest.raises(UsageError, match="-n 'a"):
        select(tmp_path, """{a: {args: "-n 'a"}}""")


def test_without_a_configuration_the_line_is_for_show(tmp_path):
    assert "-Q [merlin]_simq,[merlin]_postq" in words(worker_command(None, spec_worker()))


@pytest.mark.parametrize("name", ["simq", "[merlin]_simq", "[merlin]_simq@NAMESPACE"])
def test_all_names_of_a_queue_mean_the_same(config, name):
    assert plain_queue(config, name.replace("NAMESPACE", config.namespace)) == "simq"


# ------------------------------------------------------------------ schedulers


def launch(
    *workers: SpecWorker, installed: bool = True, allocation: Allocation | None = None
) -> list[Launch]:
    which = (lambda name: f"/usr/bin/{name}") if installed else (lambda name: None)

    def command(worker: SpecWorker, is_elsewhere: bool) -> list[str]:
        return ["celery", worker.name, "there" if is_elsewhere else "here"]

    return launches(list(workers), command, which=which, logs=Path("/logs"), allocation=allocation)


def launcher(found: Launch) -> str:
    """The words before the program of a node."""
    argv = list(found.argv)
    return words(argv[: argv.index(sys.executable)])


ALLOCATION = Allocation(scheduler="slurm", job="7", num_nodes=2, hosts=("n1", "n2"))
ALLOCATION_OF_LSF = Allocation(scheduler="lsf", job="7", num_nodes=2, hosts=("n1", "n2"))


@pytest.mark.parametrize(
    ("batch", "allocation", "expected", "num_nodes"),
    [
        (
            {"nodes": 3, "bank": "b", "queue": "q", "walltime": "1:00:00"},
            None,
            "srun -N 3 -n 3 --overlap --cpu-bind=none -A b -p q -t 01:00:00",
            3,
        ),
        (
            {"bank": "b", "queue": "q", "walltime": "1:00:00"},
            ALLOCATION,
            "srun -N 2 -n 2 --overlap --cpu-bind=none",
            2,
        ),
        ({"nodes": 1, "launch_args": "--mpi none"}, ALLOCATION,
         "srun -N 1 -n 1 --overlap --cpu-bind=none --mpi none", 1),
        ({"type": "lsf-srun"}, ALLOCATION_OF_LSF, "srun -N 2 -n 2", 2),
    ],
)  # fmt: skip
def test_a_launcher_starts_one_program_on_each_node_of_the_allocation(batch, allocation, expected, num_nodes):
    (found,) = launch(spec_worker(**{"type": "slurm", **batch}), allocation=allocation)
    assert launcher(found) == expected
    assert (found.num_nodes, found.num_workers, found.is_local) == (num_nodes, num_nodes, False)


def test_a_launcher_that_does_not_nest_is_left_to_the_programs_of_steps(tmp_path):
    here = Allocation(scheduler="lsf", job="7", num_nodes=2)
    plain, programs = spec_worker(type="lsf"), spec_worker(type="lsf", nodes=2)
    (found,) = launch(plain, allocation=here)
    assert launcher(found).endswith(" -n 2")
    (found,) = launch(replace(programs, starts_programs=True), allocation=here)
    assert (found.is_local, found.num_workers) == (True, 1)
    assert "its steps use $(LAUNCHER)" in found.note


def test_a_worker_starts_programs_if_a_step_of_it_uses_the_launcher(tmp_path):
    (tmp_path / "x.yaml").write_text(
        STUDY.replace('cmd: "true", task_queue: simq', 'cmd: "$(LAUNCHER) ./sim", task_queue: simq')
        .replace("WORKERS", "{a: {steps: [sim]}, b: {steps: [post, end]}}")
        .replace("OVERLAP", "false")
        .replace("BATCH", "type: lsf")
    )
    made = load_spec(tmp_path / "x.yaml").document
    selection = select_workers(made, queues_by_step(made), host="n1")
    assert {worker.name: worker.starts_programs for worker in selection.start} == {"a": True, "b": False}


def test_the_program_of_a_node_starts_all_workers_with_the_same_launcher():
    a, b = spec_worker(type="slurm"), replace(spec_worker(type="slurm"), name="postw")
    c = replace(spec_worker(type="slurm", nodes=1), name="one")
    both, one = launch(a, b, c, allocation=ALLOCATION)
    assert (both.name, both.num_workers, one.name, one.num_workers) == ("simw+postw", 4, "one", 1)
    told = json.loads(both.argv[-1])
    assert told == {
        "logs": "/logs",
        "workers": {"simw": ["celery", "simw", "there"], "postw": ["celery", "postw", "there"]},
    }


def test_local_workers_start_here_even_in_an_allocation():
    (found,) = launch(spec_worker(type="local", nodes=3), allocation=ALLOCATION)
    assert (found.argv, found.num_workers, found.is_local) == (("celery", "simw", "here"), 1, True)


def test_where_a_launcher_has_started_this_process_on_each_node_it_starts_no_other():
    made = launches(
        [spec_worker(type="slurm", nodes=3)], lambda worker, is_elsewhere: [worker.name], which=str,
        logs=Path("/logs"), allocation=ALLOCATION, is_launched=True,
    )  # fmt: skip
    assert [(found.argv, found.is_local, found.note) for found in made] == [(("simw",), True, "")]


def test_text_before_the_launcher_is_for_the_users_shell():
    (found,) = launch(spec_worker(type="slurm", nodes=1, launch_pre="module load x;", shell="/bin/bash -l"))
    assert found.argv[:3] == ("/bin/bash", "-l", "-c")
    assert found.argv[3].startswith("module load x; srun -N 1 -n 1 ")


def test_where_the_launcher_is_missing_the_worker_starts_here_and_says_so():
    (found,) = launch(spec_worker(type="slurm", nodes=9), installed=False)
    assert found.argv == ("celery", "simw", "here")
    assert found.num_workers == 1
    assert "srun is not installed here" in found.note


def test_machines_choose_among_the_nodes_of_an_allocation(tmp_path):
    selection = select(
        tmp_path, "{a: {machines: [n2, n3]}}", batch="type: slurm", hosts=["n1", "n2"], host="n1"
    )
    (worker,) = selection.start
    assert worker.hosts == ("n2",)
    (found,) = launch(worker, allocation=ALLOCATION)
    assert launcher(found) == "srun -N 1 -n 1 --overlap --cpu-bind=none -w n2"


def test_a_number_of_nodes_on_the_command_line_replaces_the_batch_blocks_and_limits_a_workers(tmp_path):
    workers = "{a: {steps: [sim], nodes: 1}, b: {steps: [post], nodes: 9}, c: {steps: [end]}}"
    selection = select(tmp_path, workers, batch="type: slurm, nodes: 5", nodes=3)
    assert {worker.name: worker.nodes for worker in selection.start} == {"a": 1, "b": 3, "c": 3}
