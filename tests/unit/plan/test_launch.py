"""What $(LAUNCHER) and $(VLAUNCHER) become under a scheduler."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.batch.contract import JobRequest
from merlin.batch.local import Local
from merlin.batch.registry import SCHEDULERS, scheduler_of
from merlin.plan.launch import Launchers, declare_vlauncher, fill_launchers

DOCS = Path(__file__).parents[3] / "docs" / "schedulers.md"
LAUNCHERS = Launchers(Local("mpirun"), {"slurm": scheduler_of("slurm")})
BY_VARIABLES = "srun -n ${MERLIN_PROCS} -N ${MERLIN_NODES} -c ${MERLIN_CORES}"


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$(LAUNCHER) x", "srun -n 8 -N 2 -c 3 x"),
        ("time $(LAUNCHER)[1n, 2p] x && $(LAUNCHER)[1p] y", "time srun -n 2 -N 1 -c 3 x && srun -n 1 -c 3 y"),
        ("$(LAUNCHER)[2, 16] y", "srun -n 16 -N 2 -c 3 y"),
        ("$(LAUNCHER)[$(X0)p] x", "srun -n $(X0) -c 3 x"),
        (
            "MERLIN_PROCS=3\n$(VLAUNCHER) x",
            f"MERLIN_PROCS=3\n{BY_VARIABLES} x",
        ),
        (
            "MERLIN_PROCS=1\n$(VLAUNCHER)",
            "MERLIN_PROCS=1\nsrun -n ${MERLIN_PROCS} -N ${MERLIN_NODES} -c ${MERLIN_CORES}",
        ),
        (
            "MERLIN_GPUS=2\n$(VLAUNCHER)",
            f"MERLIN_GPUS=2\n{BY_VARIABLES} --gpus=${{MERLIN_GPUS}}",
        ),
    ],
)
def test_slurm_starts_the_programs(text, filled):
    resources = {"procs": 8, "nodes": 2, "cores per task": 3, "batch.type": "slurm"}
    assert fill_launchers(text, resources, LAUNCHERS) == filled


def test_a_step_with_nodes_alone_has_a_process_on_each():
    resources = {"nodes": 2, "batch.type": "slurm"}
    assert fill_launchers("$(LAUNCHER) x", resources, LAUNCHERS) == "srun -n 2 -N 2 x"
    assert fill_launchers("$(LAUNCHER) x", {"nodes": 2}, LAUNCHERS) == "mpirun -np 2 x"


def test_a_scheduler_that_is_not_here_leaves_its_arguments_behind():
    step = {"procs": 2, "batch.launch_pre": "time", "batch.launch_args": "--bind-to none"}
    assert fill_launchers("$(LAUNCHER) x", {**step, "batch.type": "flux"}, LAUNCHERS) == "mpirun -np 2 x"
    assert fill_launchers("$(LAUNCHER) x", step, LAUNCHERS) == "time mpirun -np 2 --bind-to none x"


def test_a_declared_vlauncher_has_every_variable_that_its_line_reads():
    resources = {"procs": 8, "gpus": 2, "batch.type": "slurm"}
    text = fill_launchers(declare_vlauncher("$(VLAUNCHER) x", resources, "/bin/bash"), resources, LAUNCHERS)
    for name in ("MERLIN_NODES=1", "MERLIN_PROCS=8", "MERLIN_CORES=1", "MERLIN_GPUS=2"):
        assert f"{name}\n" in text
        assert "${" + name.partition("=")[0] + "}" in text


def test_a_line_break_in_what_the_user_gives_does_not_become_another_command():
    resources = {"procs": 2, "slurm": "--mpi=pmix\nrm -rf x", "batch.type": "slurm"}
    assert "\n" not in fill_launchers("$(LAUNCHER) x", resources, LAUNCHERS)


HOSTILE = st.one_of(
    st.text(st.sampled_from("\n\r\t\x00\x0b\u2028;$(`' a1-"), max_size=12), st.integers(), st.booleans()
)
KEYS = (
    "nodes", "procs", "cores per task", "gpus", "gpus per task", "walltime", "reservation", "qos", "slurm", "flux",
    "lsf", "pbs", "bind", "bind gpus", "launch_distribution", "num resource set", "tasks per rs", "exit_on_error",
    "exclusive.launcher", "batch.launch_pre", "batch.launch_args", "batch.flux_path",
)  # fmt: skip


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(resources=st.dictionaries(st.sampled_from(KEYS), HOSTILE))
@settings(deadline=None)
def test_whatever_a_step_says_its_launch_line_is_one_line_or_refused(scheduler, resources):
    launchers = Launchers(Local("mpirun"), SCHEDULERS)
    try:
        line = fill_launchers("$(LAUNCHER)", {**resources, "batch.type": scheduler}, launchers)
    except ValueError:
        return
    assert line.isprintable()


def test_the_launch_lines_in_the_documentation_are_those_of_the_schedulers():
    text = DOCS.read_text(encoding="utf-8").partition("## Launch lines")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]*) \| `([^|]*)` \|$", text, re.MULTILINE)
    launchers = Launchers(Local("mpirun"), SCHEDULERS)
    step = {"nodes": 2, "procs": 8, "cores per task": 3, "walltime": "00:30:00"}
    said = {name: line for names, line in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert said == {
        name: fill_launchers("$(LAUNCHER)", {**step, "batch.type": name}, launchers) for name in SCHEDULERS
    }


@pytest.mark.parametrize("name", ["slurm", "flux", "lsf", "pbs"])
def test_the_launch_line_on_a_schedulers_page_is_what_its_step_gets(name):
    text = (DOCS.parent / f"{name}.md").read_text(encoding="utf-8")
    block = text.partition("```yaml\n")[2].partition("\n```")[0]
    said = re.search(r"# (.* \./simulate) …", block)
    document = yaml.safe_load(block)
    resources = {**document["study"][0]["run"], "batch.type": document["batch"]["type"]}
    command = resources.pop("cmd").removesuffix(" $(X)")
    assert said and fill_launchers(command, resources, Launchers(Local("mpirun"), SCHEDULERS)) == said[1]


def table(title):
    """The cells of the last table of a section: key, scheduler, flag."""
    section = DOCS.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"
    ]
    start = next(i for i, row in enumerate(rows) if row[0] == "key")
    names = [name.lower() for name in rows[start][1:]]
    return [
        (key, name, flag.strip("`"))
        for key, *flags in rows[start + 2 :]
        for name, flag in zip(names, flags, strict=True)
    ]


@pytest.mark.parametrize(("key", "name", "flag"), table("Launch lines"))
def test_the_flag_of_each_key_is_the_documented_one(key, name, flag):
    launchers = Launchers(Local("mpirun"), SCHEDULERS)
    step = {"nodes": "2", "procs": "8", "batch.type": name}
    key = key.strip("`")
    asked = {key: "30" if key == "walltime" else "7"}
    if key.startswith("exclusive"):
        asked = {"exclusive.launcher": True}
    line = fill_launchers("$(LAUNCHER)", {**step, **asked}, launchers)
    if flag:
        assert f" {flag}" in line
    else:
        assert line == fill_launchers("$(LAUNCHER)", step, launchers)


@pytest.mark.parametrize(("key", "name", "flag"), table("Scripts of a dry run"))
def test_the_header_has_the_documented_line_for_each_key(key, name, flag):
    full = {
        "name": "a", "nodes": 2, "walltime_s": 60.0, "bank": "b", "queue": "q", "qos": "s", "is_exclusive": True,
        "output": "o", "error": "e", "reservation": "r" if "reservation" in key else "",
        "priority": "high", "is_waitable": True,
    }  # fmt: skip
    lines = SCHEDULERS[name].directives(JobRequest(**full))
    if flag:
        assert [line for line in lines if f" {flag}" in line]
    else:
        field = {"waitable": "is_waitable"}.get(key.strip("`"), key.strip("`"))
        without = JobRequest(**{**full, field: type(full[field])()})
        assert lines == SCHEDULERS[name].directives(without)
