"""Worker jobs that come and go by themselves: from nothing to nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lines_study import LinesStudy, write_spec
from slurm_site import SlurmSite
from waiting import wait_until

ICF = Path(__file__).parents[3] / "specs" / "icf"
MAX_NODES = 2


@contextmanager
def autoscale(site: SlurmSite, target: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`merlin workers autoscale` on the login node."""
    given = ("--scheduler", "slurm", "--walltime", "10:00", "--max", str(MAX_NODES), "--idle", "5s", "--json")
    process = site.start_command("workers", "autoscale", target, *given, *words)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def num_jobs(site: SlurmSite) -> int:
    return sum(state in ("PENDING", "RUNNING", "COMPLETING") for state in site.cluster.states().values())


def end_of(process: subprocess.Popen[str]) -> list[dict]:
    """The decisions, once it has ended by itself."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, f"{out}\n{err}"
    return [json.loads(line) for line in out.splitlines()]


def test_jobs_come_from_zero_outlive_autoscale_and_the_controller_and_go_back_to_zero(site):
    study = LinesStudy.publish(site, "N=60", "SHARD=20", "HOLD=30", held=True)
    assert num_jobs(site) == 0
    with autoscale(site, study.workspace.path) as process:
        wait_until(site.live_workers, process)
    site.cluster.stop_controller()
    with autoscale(site, study.workspace.path) as process:  # the first one was killed
        diary = study.workspace.path / "merlin_info" / "autoscale.jsonl"
        wait_until(lambda: "does not answer" in diary.read_text(), process)
        site.cluster.start_controller()
        study.wait_for(60)
        assert 0 < num_jobs(site) <= MAX_NODES
        study.let_go()
        decisions = end_of(process)
    study.check()
    assert all(decision["reason"] for decision in decisions)
    site.cluster.wait_until_idle()
    assert num_jobs(site) == 0


def test_the_fusion_ensemble_of_jobs_that_come_by_themselves_is_that_of_one_machine(site):
    words = ("run", ICF / "icf.yaml", "--json", "--vars", "N_SAMPLES=100")
    alone = json.loads(site.merlin(*words, "OUTPUT_PATH=here", "--local").stdout)
    published = json.loads(site.merlin(*words, "OUTPUT_PATH=there").stdout)
    with autoscale(site, Path(published["workspace"])) as process:
        end_of(process)
    digests = [manifest(Path(run["workspace"]))["content_digest"] for run in (alone, published)]
    assert digests[0] == digests[1]


def manifest(workspace: Path) -> dict:
    return json.loads((workspace / "collect" / "manifest.json").read_text())


def test_one_command_publishes_brings_jobs_and_ends_with_the_study(site):
    spec = write_spec(site.folder)
    caps = f'batch: {{type: slurm, autoscale: {{max: {MAX_NODES}, walltime: "10:00", idle: 5s}}}}\n'
    spec.write_text(spec.read_text() + caps)
    done = site.merlin("run", spec, "--autoscale", "--json", "--vars", "N=12", "SHARD=4")
    report = json.loads(done.stdout)
    assert report["ok"] == report["planned"]
    assert "submitted job" in done.stderr
    assert "the work is done, and no job is left" in done.stderr
    LinesStudy(site, spec, Path(report["workspace"])).check()
    assert num_jobs(site) == 0
