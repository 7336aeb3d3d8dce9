"""A slice is committed only with a leave that is no older than what the shortest lease still covers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from small_plans import step
from study_on_disk import make_workspace

from merlin.errors import LeaseLostError
from merlin.execution import journal as module
from merlin.execution.journal import PERMISSION_S, ChunkJournal
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import NO_OUTCOME, Chunk, Outcome
from merlin.workspace.directory import open_workspace


class Stalling:
    """A clock, and a process that stands still where it is told to."""

    def __init__(self, *, in_fence: list[float], in_collect: float) -> None:
        self.now, self.asked = 0.0, 0
        self._in_fence, self._in_collect = in_fence, in_collect

    def fence(self) -> None:
        self.asked += 1
        self.now += self._in_fence.pop(0) if self._in_fence else 0.0

    def collect(self, *_: object) -> None:
        self.now += self._in_collect


@pytest.mark.parametrize(
    ("in_fence", "in_collect", "asked"),
    [
        ([], 0.0, 1),
        ([2 * PERMISSION_S], 0.0, 2),
        ([], 2 * PERMISSION_S, 2),
        ([2 * PERMISSION_S, 3 * PERMISSION_S], 2 * PERMISSION_S, 4),
    ],
)
def test_a_process_that_stood_still_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_fence: list[float], in_collect: float, asked: int
) -> None:
    stalling = Stalling(in_fence=in_fence, in_collect=in_collect)
    clock = SimpleNamespace(monotonic=lambda: stalling.now, time=lambda: 0.0, perf_counter=lambda: 0.0)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(ChunkJournal, "_collect", stalling.collect)
    assert commit(tmp_path, stalling.fence) == [(0, 1, Outcome.OK)]
    assert stalling.asked == asked


def test_nothing_is_committed_by_who_has_lost_the_chunk_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalling = Stalling(in_fence=[], in_collect=2 * PERMISSION_S)

    def fence() -> None:
        stalling.fence()
        if stalling.asked == 2:
            raise LeaseLostError("the chunk was given to another worker")

    clock = SimpleNamespace(monotonic=lambda: stalling.now, time=lambda: 0.0, perf_counter=lambda: 0.0)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(ChunkJournal, "_collect", stalling.collect)
    with pytest.raises(LeaseLostError):
        commit(tmp_path, fence)
    (study,) = map(open_workspace, tmp_path.glob("study_*"))
    assert list(replay(study.ledger_dir, study.plan).outcomes["s"].runs()) == [(0, 1, NO_OUTCOME)]


def commit(folder: Path, fence: object) -> list[tuple[int, int, int]]:
    workspace = make_workspace(folder, step("s", 1))
    instance = workspace.instance("s")
    with LedgerWriter(workspace.ledger_dir, "w0") as ledger:
        chunk = Chunk(instance="s", lo=0, hi=1)
        journal = ChunkJournal(workspace, instance, chunk, "w0", ledger, None, fence)
        journal.end(0, Outcome.OK, started=0.0, seconds=0.0)
        journal.flush()
    return list(replay(workspace.ledger_dir, workspace.plan).outcomes["s"].runs())
