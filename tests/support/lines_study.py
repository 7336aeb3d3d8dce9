"""A study whose every task writes a line of its own, and the proof that each was committed exactly once."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from installation import Installation
from waiting import wait_until

import merlin
from merlin.ledger.records import ChunkRecord
from merlin.ledger.replay import replay
from merlin.plan.outcome_counts import summed
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.shards.proving.verify import verify
from merlin.status.snapshot import take_snapshot
from merlin.workspace.directory import open_workspace

# every run of a task, finished or not, leaves a line in `started`, so that repetitions can be counted; while a file
# `hold` exists, copies from sample HOLD on do not end, so that the study still runs when a fault comes late;
# nobody writes to `pause`, so reading it takes a time, as `sleep` does, without a process for each
SPEC = """
description: {name: lines, description: every task writes one line of its own}
env: {variables: {OUTPUT_PATH: ., N: 2000, SLEEP: 0.02, SHARD: 250, FRESH: false, HOLD: 40}}
study:
  - name: write
    description: a line that no other run of any task writes
    run:
      task_queue: writes
      crash_limit: 1000
      fresh_shell: $(FRESH)
      cmd: |
        echo "write $(MERLIN_SAMPLE_ID)" >> $(SPECROOT)/started
        read -t $(SLEEP) <> $(SPECROOT)/pause
        echo "$(MERLIN_SAMPLE_ID) $SRANDOM" > line.txt
  - name: copy
    description: the same line, under JSON's rules
    run:
      task_queue: copies
      crash_limit: 1000
      fresh_shell: $(FRESH)
      depends: [write]
      cmd: |
        echo "copy $(MERLIN_SAMPLE_ID)" >> $(SPECROOT)/started
        while test $(MERLIN_SAMPLE_ID) -ge $(HOLD) -a -e $(SPECROOT)/hold; do read -t 0.1 <> $(SPECROOT)/pause; done
        read -t $(SLEEP) <> $(SPECROOT)/pause
        read -r id nonce < $(write.workspace)/$(MERLIN_SAMPLE_PATH)/line.txt
        echo "{\\"id\\": $id, \\"nonce\\": $nonce, \\"copy\\": $SRANDOM}" > line.json
  - name: collect
    description: all lines, in shards
    run:
      task_queue: shards
      crash_limit: 1000
      depends: [copy]
      aggregate:
        samples_per_shard: $(SHARD)
        fields:
          id: {file: line.json, key: id, dtype: int64}
          nonce: {file: line.json, key: nonce, dtype: int64}
          copy: {file: line.json, key: copy, dtype: int64}
merlin:
  samples:
    generate: {method: uniform, num: $(N), bounds: {X: [0, 1]}, seed: 1}
    column_labels: [X]
"""


def write_spec(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lines.yaml"
    path.write_text(SPEC)
    pause = folder / "pause"
    if not pause.exists():
        os.mkfifo(pause)
    return path


@dataclass(frozen=True)
class Facts:
    """What a finished study cost."""

    num_tasks: int
    num_started: int  # runs of shell tasks
    num_shell_tasks: int

    @property
    def num_again(self) -> int:
        return self.num_started - self.num_shell_tasks


class LinesStudy:
    """A published study of `SPEC`, watched through its ledger."""

    def __init__(self, home: Installation, spec: Path, workspace: Path) -> None:
        self.home, self.spec = home, spec
        self.workspace = open_workspace(workspace)
        self._replay = replay(self.workspace.ledger_dir, self.workspace.plan)
        self.planned = sum(i.num_tasks for i in self.workspace.plan.instances)

    @property
    def id(self) -> str:
        return self.workspace.plan.study_id

    @classmethod
    def publish(cls, home: Installation, *variables: str, held: bool = False) -> LinesStudy:
        """`merlin run` with these variables ("N=100"), which returns before anything has run.

        A study that is held does not end before `let_go`.
        """
        spec = write_spec(home.folder)
        if held:
            (home.folder / "hold").touch()
        done = home.merlin("run", spec, "--json", *(["--vars", *variables] if variables else []))
        return cls(home, spec, Path(json.loads(done.stdout)["workspace"]))

    def let_go(self) -> None:
        (self.spec.parent / "hold").unlink()

    def counts(self) -> dict[str, dict[str, int]]:
        """Tasks per outcome of each step, as the ledger has them now."""
        self._replay.update()
        names = {int(o): o.name.lower() for o in Outcome} | {NO_OUTCOME: "missing"}
        return {
            id: {names[outcome]: num for outcome, num in found.items()}
            for id, found in self._replay.counts().items()
        }

    @property
    def num_ended(self) -> int:
        return sum(n for found in self.counts().values() for name, n in found.items() if name not in _OPEN)

    def num_started(self) -> int:
        path = self.spec.parent / "started"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def show(self) -> str:
        return f"{json.dumps(self.counts())}\n{self.home.describe()}"

    def wait_for(self, num_ended: int) -> None:
        """Wait until that many tasks have an outcome in the ledger."""

        def arrived() -> bool:
            dead = [worker.tail() for worker in self.home.workers if not worker.is_alive]
            assert not dead, "a worker ended by itself:\n" + "\n".join(dead)
            return self.num_ended >= num_ended

        wait_until(arrived, self.show)

    def wait_for_end(self) -> None:
        self.wait_for(self.planned)

    def check(self, *, failed_before: bool = False) -> Facts:
        """Assert that planned = ok, each task committed once, each line in the shards once, shards verified.

        With `failed_before`, tasks may have failed in an earlier run of the study.
        """
        assert summed(take_snapshot(self.workspace).steps) == {
            "planned": self.planned,
            "ok": self.planned,
            "failed": 0,
            "skipped": 0,
            "missing": 0,
        }
        self.check_commits(Outcome.OK if failed_before else Outcome.FAILED)
        self._check_lines()
        report = verify(self.workspace.path / "collect")
        assert report.ok, [problem.render() for problem in report.problems]
        per_sample = [i.num_tasks for i in self.workspace.plan.instances if i.step != "collect"]
        return Facts(self.planned, self.num_started(), sum(per_sample))

    def check_commits(self, last: Outcome = Outcome.FAILED) -> None:
        """Assert that each task's end, with an outcome up to `last`, stands in the ledger once."""
        counts = {i.id: np.zeros(i.num_tasks, int) for i in self.workspace.plan.instances}
        by_whom: dict[tuple[str, int], list[str]] = {}
        for record in replay(self.workspace.ledger_dir, self.workspace.plan).records():
            if not isinstance(record, ChunkRecord):
                continue
            ended = np.flatnonzero(record.outcomes <= last) + record.lo
            counts[record.instance][ended] += 1
            for task in ended[counts[record.instance][ended] > 1]:
                who = f"{record.worker} attempt {record.attempt} at {record.started:.3f}"
                by_whom.setdefault((record.instance, int(task)), []).append(who)
        twice = {id: int((n > 1).sum()) for id, n in counts.items() if (n > 1).any()}
        assert not twice, f"committed more than once: {twice}; e.g. {list(by_whom.items())[:5]}"
        lacking = {id: int((n == 0).sum()) for id, n in counts.items() if (n == 0).any()}
        assert not lacking, f"committed by nobody: {lacking}"

    def _check_lines(self) -> None:
        data = merlin.open_shards(self.workspace.path / "collect")
        rows = {name: data[name][:].tolist() for name in ("id", "nonce", "copy")}
        sample_ids = data.sample_id[:].tolist()
        num = self.workspace.plan.samples.num if self.workspace.plan.samples else 0
        assert sorted(sample_ids) == list(range(num))
        assert rows["id"] == sample_ids, "a row holds the line of another sample"
        pairs = Counter(zip(rows["id"], rows["nonce"], strict=True))
        assert max(pairs.values()) == 1, "a line is in the shards twice"


_OPEN = ("missing", "interrupted")


def newest_workspace(folder: Path) -> Path:
    return max(
        (plan.parents[1] for plan in folder.glob("*/merlin_info/plan.json")), key=lambda p: p.stat().st_ctime
    )
