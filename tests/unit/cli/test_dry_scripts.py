"""`merlin run --dry` writes the scripts that upstream and Maestro write, with the header of the scheduler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from in_process import merlin

from merlin.cli.dry import MAX_LINES

SPEC = """
description: {name: dry, description: d}
batch: {type: TYPE, bank: physics, queue: pbatch}
study:
  - name: sim
    run:
      cmd: $(LAUNCHER) ./sim
      restart: $(LAUNCHER) ./sim --again
      nodes: 2
      procs: 4
      walltime: "01:30:00"
      exclusive: true
      reservation: night
      qos: low
  - name: alone
    run: {cmd: ./post, depends: [sim]}
  - name: here
    run: {cmd: ./post, procs: 1, batch: {type: local}}
"""
HEADERS = {
    "slurm": [
        "--job-name=sim", "--nodes=2", "--ntasks=4", "--time=01:30:00", "--account=physics", "--partition=pbatch",
        "--reservation=night", "--qos=low", "--exclusive", "--output=sim.out", "--error=sim.err",
    ],
    "flux": ["--job-name=sim", "-N 2", "-t 5400s", "--queue=pbatch", "--bank=physics", "--exclusive",
             "--output=sim.out", "--error=sim.err"],
    "lsf": ["-J sim", "-nnodes 2", "-W 01:30", "-q pbatch", "-G physics", "-U night", "-x", "-o sim.out", "-e sim.err"],
    "pbs": ["-N sim", "-l select=2:mpiprocs=2", "-l place=scatter:excl", "-l walltime=01:30:00", "-A physics",
            "-o sim.out", "-e sim.err"],
}  # fmt: skip
LINES = {
    "slurm": "srun -n 4 -N 2 -t 01:30:00 ",
    "flux": "flux run -N 2 -n 4 ",
    "lsf": "jsrun --np 4 --nrs 2 ",
    "pbs": "mpiexec -n 4 --ppn 2 ",
}


@pytest.fixture
def workspace_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")  # no scheduler is here

    def write(text: str, code: int = 0) -> Path:
        (tmp_path / "s.yaml").write_text(text)
        assert merlin("run", "s.yaml", "--local", "--dry") == code
        return next(tmp_path.glob("dry_*"), tmp_path)

    return write


@pytest.mark.parametrize("scheduler", HEADERS)
def test_a_script_has_the_name_the_header_and_the_launch_line_of_its_scheduler(
    workspace_of, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = workspace_of(SPEC.replace("TYPE", scheduler))
    files = {
        path.name for path in workspace.glob("*/*") if path.is_file() and "merlin_info" not in path.parts
    }
    suffix = f".{scheduler}.sh"
    assert files == {f"sim{suffix}", f"sim.restart{suffix}", f"alone{suffix}", "here.sh"}
    for name in (f"sim{suffix}", f"sim.restart{suffix}"):
        text = (workspace / "sim" / name).read_text()
        head, body = text.split("\n\n", 1)
        words = [line.split(" ", 1)[1] for line in head.splitlines()[1:]]
        assert head.startswith("#!/bin/bash\n")
        assert [word for word in HEADERS[scheduler] if word not in words] == []
        assert body.startswith(LINES[scheduler])
        subprocess.run(["/bin/bash", "-n"], input=text, text=True, check=True, timeout=60)
    assert (workspace / "alone" / f"alone{suffix}").read_text() == "#!/bin/bash\n\n./post\n"
    assert (workspace / "here/here.sh").read_text() == "#!/bin/bash\n\n./post\n"
    assert "runs as one" not in capsys.readouterr().err


def test_what_would_begin_another_line_of_the_header_is_refused(
    workspace_of, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SPEC.replace("TYPE", "slurm").replace("bank: physics", 'bank: "physics\\n#SBATCH --wrap=evil"')
    workspace = workspace_of(text, code=2)
    assert "may hold no" in capsys.readouterr().err
    assert not list(workspace.glob("sim/*"))


def test_a_step_of_its_own_job_may_be_planned(workspace_of) -> None:
    text = SPEC.replace("TYPE", "slurm").replace("qos: low", "batch: {submit: true}")
    assert (workspace_of(text) / "sim/sim.slurm.sh").is_file()


def test_of_many_step_instances_only_some_are_listed(
    workspace_of, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = workspace_of(
        "description: {name: dry, description: d}\n"
        "study: [{name: sim, run: {cmd: echo $(P)}}]\n"
        f"global.parameters: {{P: {{values: {list(range(MAX_LINES + 3))}, label: P.%%}}}}\n"
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MAX_LINES + 3
    assert lines[-2].endswith("… and 3 more step instances (--json shows all)")
    assert lines[-1] == f"dry run: {MAX_LINES + 3} scripts written, nothing was run"
    assert len(list(workspace.glob("sim/*/*.sh"))) == MAX_LINES + 3
