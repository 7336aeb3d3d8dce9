"""What an edited spec changes in a study that has run: how long it takes to find out, also beside Snakemake."""

from __future__ import annotations

import json
import os
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from measure import MERLIN, Timing, fresh, made_apart, median_s, only_workspace, ratio_s, run
from peer import environment_of, installed
from report import Row, mb

VERSION = "9.27.1"
SNAKEMAKE = Path(__file__).resolve().parents[2] / ".cache" / f"snakemake-{VERSION}"
RECORD = 500  # tasks per ledger record
NUM_SHARDS = 1000  # of the data set
NUM_REALLY = 1000  # samples that run again for real: Snakemake needs about a minute for them

SPEC = """
description: {name: updating, description: three steps of which one is edited}
study:
  - name: simulate
    run: {cmd: "echo $(X0) $(X1) > out"}
  - name: post
    run:
      depends: [simulate]
      cmd: "wc $(simulate.workspace)/$(MERLIN_SAMPLE_PATH)/out; echo '{\\"y\\": 1}' > out.json"
  - name: collect
    run:
      depends: [post]
      aggregate: {samples_per_shard: PER_SHARD, fields: {y: {file: out.json, key: y}}}
merlin:
  samples:
    generate: {method: uniform, num: NUM, bounds: {X0: [0, 1], X1: [0, 1]}, seed: 1}
    column_labels: [X0, X1]
"""
EDITS = {  # of each step
    "simulate": ("$(X0) $(X1)", "$(X1) $(X0)"),
    "post": ('": 1}', '": 2}'),
    "collect": ("key: y}", "key: z}"),
}

# the same samples in Snakemake and here, two steps, of which the second is edited
SHORT_SPEC = """
description: {name: short, description: two steps of which one is edited}
study:
  - name: simulate
    run: {cmd: "echo $(MERLIN_SAMPLE_ID) > out"}
  - name: post
    run: {depends: [simulate], cmd: "cp $(simulate.workspace)/$(MERLIN_SAMPLE_PATH)/out out"}
merlin:
  samples:
    generate: {method: uniform, num: NUM, bounds: {X0: [0, 1]}, seed: 1}
    column_labels: [X0]
"""
SHORT_EDIT = ("/out out", "/out ./out")
SNAKEFILE = """
rule all:
    input: expand("post/{i}", i=range(NUM))
rule simulate:
    output: "simulate/{i}"
    shell: "echo {wildcards.i} > {output}"
rule post:
    input: "simulate/{i}"
    output: "post/{i}"
    shell: "cp {input} {output}"
"""
SNAKE_EDIT = ("{input} {output}", "{input} ./{output}")


# --------------------------------------------------------------------------- a study


def ended_study(folder: Path, text: str) -> Path:
    """A workspace whose ledger says that every task of the spec `text` ended ok; none ever ran."""
    from merlin.ledger.records import ChunkRecord
    from merlin.ledger.writer import LedgerWriter
    from merlin.plan.tasks import Outcome
    from merlin.spec.load import load_spec
    from merlin.workspace.options import StudyOptions
    from merlin.workspace.prepare import prepare_study

    (folder / "spec.yaml").write_text(text)
    spec = load_spec(folder / "spec.yaml", variables={"OUTPUT_PATH": str(folder)})
    workspace = prepare_study(spec, StudyOptions())
    random = np.random.default_rng(0)
    with LedgerWriter(workspace.ledger_dir, "worker-0") as writer:
        for instance in workspace.plan.instances:
            for lo in range(0, instance.num_tasks, RECORD):
                num = min(RECORD, instance.num_tasks - lo)
                writer.append(
                    ChunkRecord(
                        instance=instance.id,
                        lo=lo,
                        hi=lo + num,
                        host=os.uname().nodename,
                        started=time.time(),
                        elapsed_s=num * 4e-4,
                        outcomes=np.full(num, Outcome.OK, dtype=np.uint8),
                        seconds=random.gamma(2.0, 2e-4, num).astype(np.float32),
                    )
                )
    return workspace.path


def _edit(path: Path, edit: tuple[str, str]) -> None:
    old, new = edit
    text = path.read_text()
    if old not in text:
        raise RuntimeError(f"{path} has no {old!r} to edit")
    path.write_text(text.replace(old, new))


def _planned(folder: Path, workspace: Path, spec: Path, steps: Mapping[str, int]) -> Timing:
    """Of the plan of an update, cold; `steps`: how many tasks of each must be found to run again."""
    # OUTPUT_PATH is the folder where the study was made, as for the command that made it
    command = [MERLIN, "plan", str(spec), "--update", str(workspace), "--json"]
    timing = run([*command, "--vars", f"OUTPUT_PATH={workspace.parent}"], folder)
    said = json.loads((folder / "bench.log").read_text())
    found = {each["step"]: each["again"] for each in said["steps"]}
    if {step: num for step, num in found.items() if num} != steps or said["is_nothing"] != (not steps):
        raise RuntimeError(f"the update runs {found} again instead of {dict(steps)}")
    return timing


def update_plan(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Every step is edited in turn; the slowest one counts."""
    folder = fresh(tmp / "ended")
    text = SPEC.replace("PER_SHARD", str(max(1, num // NUM_SHARDS))).replace("NUM", str(num))
    workspace = made_apart(ended_study, folder, text)
    sizes = {
        "simulate": num,
        "post": num,
        "collect": num // max(1, num // NUM_SHARDS) + 1,
    }  # and the manifest
    edited: dict[str, Path] = {}
    for step, edit in EDITS.items():
        edited[step] = folder / f"{step}.yaml"
        edited[step].write_text(text)
        _edit(edited[step], edit)
    same: list[Timing] = []
    changed: dict[str, list[Timing]] = {step: [] for step in EDITS}
    for _ in range(rounds):
        same.append(_planned(folder, workspace, folder / "spec.yaml", {}))
        for position, step in enumerate(EDITS):
            again = dict(list(sizes.items())[position:])
            changed[step].append(_planned(folder, workspace, edited[step], again))
    slowest = max(changed, key=lambda step: median_s(changed[step]))
    what = f"plan --update of {num:,} samples and three steps"
    return [
        Row(f"{what}, nothing changed", _s(same), floor="≤ 1 s, < 200 MB", memory=mb(same)),
        Row(
            f"{what}, one of them changed (the slowest of the three: {slowest})",
            _s(changed[slowest]),
            floor="≤ 2 s, < 200 MB",
            memory=mb([t for timings in changed.values() for t in timings]),
        ),
    ]


def _s(timings: list[Timing]) -> str:
    return f"{median_s(timings):.2f} s"


# --------------------------------------------------------------------------- Snakemake


def _snakemake() -> tuple[str, dict[str, str]]:
    """The command, in a virtual environment of its own under `.cache/`, and its environment variables."""
    program = installed(SNAKEMAKE, f"snakemake=={VERSION}") / "snakemake"
    env = {name: value for name, value in environment_of(SNAKEMAKE).items() if name != "PYTHONPATH"}
    return str(program), env


def _workflow_that_has_run(folder: Path, num: int) -> None:
    """Snakemake runs two samples; the files and its records of the others are made like those.

    It would need half an hour for 10,000. That it takes them for its own is checked before the edit.
    """
    snakemake, env = _snakemake()
    path = folder / "Snakefile"
    path.write_text(SNAKEFILE.replace("NUM", "2"))
    run([snakemake, "--cores", "2", "--quiet"], folder, env)
    records = folder / ".snakemake" / "metadata"
    for step in ("simulate", "post"):
        record = json.loads((records / _encoded(f"{step}/1")).read_text())
        for i in range(2, num):
            (folder / step / str(i)).write_text(f"{i}\n")
            (records / _encoded(f"{step}/{i}")).write_text(json.dumps(_record_of(record, i)))
    path.write_text(SNAKEFILE.replace("NUM", str(num)))
    run([snakemake, "--dry-run", "--quiet", "rules"], folder, env)
    said = (folder / "bench.log").read_text()
    if "Nothing to be done" not in said or "missing provenance" in said:
        raise RuntimeError(f"Snakemake does not take the workflow for one that has run\n{said[-2000:]}")


def _encoded(name: str) -> str:
    """The name of Snakemake's record of a file, which is not a long one."""
    return urlsafe_b64encode(name.encode()).decode()


def _record_of(record: dict[str, Any], i: int) -> dict[str, Any]:
    """The record of sample `i`, made from that of sample 1."""
    made = json.loads(re.sub(r"(simulate|post)/1\b", rf"\g<1>/{i}", json.dumps(record)))
    made["shellcmd"] = re.sub(r"^echo 1 ", f"echo {i} ", made["shellcmd"])
    checksum = f"sha256:{sha256(f'{i}{chr(10)}'.encode()).hexdigest()}"
    made["input_checksums"] = dict.fromkeys(made["input_checksums"], checksum)
    return made


def _snakemake_planned(folder: Path, num: int) -> Timing:
    snakemake, env = _snakemake()
    timing = run([snakemake, "--dry-run", "--quiet", "rules"], folder, env)
    found = re.search(r"^post +(\d+)$", (folder / "bench.log").read_text(), re.MULTILINE)
    if found is None or int(found[1]) != num:
        raise RuntimeError((folder / "bench.log").read_text()[-2000:])
    return timing


def update_snakemake(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One of two steps is edited; both find out what is to run, and then run it."""
    ours, theirs = fresh(tmp / "ours"), fresh(tmp / "theirs")
    text = SHORT_SPEC.replace("NUM", str(num))
    workspace = made_apart(ended_study, ours, text)
    _edit(ours / "spec.yaml", SHORT_EDIT)
    _workflow_that_has_run(theirs, num)
    _edit(theirs / "Snakefile", SNAKE_EDIT)
    mine, other = [], []
    for _ in range(rounds):
        mine.append(_planned(ours, workspace, ours / "spec.yaml", {"post": num}))
        other.append(_snakemake_planned(theirs, num))
    what = f"plan of {num:,} samples of which one of two steps was edited, against snakemake=={VERSION} --dry-run"
    return [_compared(what, mine, other, "≥ 20×"), _really(tmp, min(num, NUM_REALLY))]


def _really(tmp: Path, num: int) -> Row:
    """Run what an edit changes, for real, once."""
    ours, theirs = fresh(tmp / "ours-really"), fresh(tmp / "theirs-really")
    (ours / "spec.yaml").write_text(SHORT_SPEC.replace("NUM", str(num)))
    run([MERLIN, "run", "--local", "--workers", "2", "spec.yaml"], ours)
    _edit(ours / "spec.yaml", SHORT_EDIT)
    workspace = only_workspace(ours)
    update = ["run", "spec.yaml", "--update", str(workspace), "--yes", "--local", "--workers", "2"]
    before = time.time()
    mine = run([MERLIN, *update], ours)
    num_mine = sum(path.stat().st_mtime >= before for path in workspace.glob("post/**/out"))
    _workflow_that_has_run(theirs, num)
    _edit(theirs / "Snakefile", SNAKE_EDIT)
    before = time.time()
    snakemake, env = _snakemake()
    other = run([snakemake, "--cores", "2", "--quiet"], theirs, env)
    num_other = sum((theirs / "post" / str(i)).stat().st_mtime >= before for i in range(num))
    if (num_mine, num_other) != (num, num):
        raise RuntimeError(f"{num_mine} and {num_other} of {num} samples ran again")
    return _compared(f"the same, run for real on two workers, {num:,} samples", [mine], [other], "")


def _compared(what: str, mine: list[Timing], other: list[Timing], floor: str) -> Row:
    times = ratio_s(other, mine)
    return Row(what, _s(mine), _s(other), f"{times:.1f}×", floor, mb(mine))
