"""Kills and full disks, with real processes and real files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ledger_study import chunk, failed, outcomes_of, plan_of

from merlin.errors import LedgerError
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import NO_OUTCOME

WRITE_FOREVER = textwrap.dedent("""
    import sys, time
    import numpy as np
    from pathlib import Path
    from merlin.ledger.records import ChunkRecord
    from merlin.ledger.writer import LedgerWriter
    writer = LedgerWriter(Path(sys.argv[1]), "w", study_id="s1", sync=False)
    at, n = int(sys.argv[2]), 100
    while True:
        writer.append(ChunkRecord(instance="sim", lo=at, hi=at + n, started=time.time(),
            outcomes=np.zeros(n, np.uint8), seconds=np.random.rand(n).astype(np.float32)))
        at += n
        print(at, flush=True)
""")


def test_everything_that_was_appended_before_a_kill_is_there(tmp_path):
    plan = plan_of(sim=10**8)
    acknowledged = 0
    for kills in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(tmp_path), str(acknowledged)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        for _ in range(17 + 29 * kills):
            line = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.wait()
        acknowledged = int([line, *rest][-1])
        state = replay(tmp_path, plan)
        done = state.outcomes["sim"].ranges([0])
        assert len(done) == 1 and done[0][0] == 0
        assert acknowledged <= done[0][1] <= acknowledged + 100
        assert all(damage.torn for damage in state.damage)
        acknowledged = done[0][1]
    assert len(list(tmp_path.iterdir())) == 4


LIMITED = textwrap.dedent("""
    import resource, sys
    from pathlib import Path
    import numpy as np
    from merlin.errors import LedgerError
    from merlin.ledger.records import ChunkRecord
    from merlin.ledger.writer import LedgerWriter

    def record(lo):
        return ChunkRecord(instance="sim", lo=lo, hi=lo + 100, started=0.0, elapsed_s=1.0,
            outcomes=np.zeros(100, np.uint8), seconds=np.arange(100, dtype=np.float32))

    writer = LedgerWriter(Path(sys.argv[1]), "w", study_id="s1")
    writer.append(record(0))
    whole = writer.size_bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 200, resource.RLIM_INFINITY))
    try:
        writer.append(record(100))
    except LedgerError as e:
        print(e)
    assert writer.path.stat().st_size == writer.size_bytes == whole
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.append(record(200))
""")


def test_a_full_disk_leaves_no_half_record_and_the_writer_goes_on_when_there_is_room(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "File too large; allow larger files (ulimit -f unlimited), then run merlin restart" in done.stdout
    state = replay(tmp_path, plan_of(sim=300))
    assert state.outcomes["sim"].ranges([0]) == [(0, 100), (200, 300)]
    assert state.damage == []


def test_a_segment_that_cannot_be_created_is_an_error_with_its_path(tmp_path):
    (tmp_path / "ledger").write_text("a file, not a directory")
    with pytest.raises(LedgerError, match=str(tmp_path / "ledger")):
        LedgerWriter(tmp_path / "ledger", "w")


def test_a_closed_writer_refuses_to_write(tmp_path):
    writer = LedgerWriter(tmp_path, "w", sync=False)
    writer.close()
    with pytest.raises(LedgerError, match="closed"):
        writer.append(chunk([0]))


def test_a_half_written_header_is_not_an_error(tmp_path):
    with LedgerWriter(tmp_path, "w", study_id="s1", sync=False) as writer:
        writer.append(chunk([0, 0]))
    data = writer.path.read_bytes()
    for cut in (0, 3, 8, 15, 40):
        (tmp_path / "other-1-ab.mlg").write_bytes(data[:cut])
        state = replay(tmp_path, plan_of(sim=2))
        assert outcomes_of(state.outcomes["sim"]) == [0, 0]
    (tmp_path / "other-1-ab.mlg").write_bytes(data)
    state.update()
    assert state.num_records == 2


def test_a_reader_sees_whole_records_while_another_process_writes(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOREVER, str(tmp_path), "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        process.stdout.readline()
        state = replay(tmp_path, plan_of(sim=10**8))
        seen = 0
        while seen < 20_000:
            os.read(process.stdout.fileno(), 1 << 16)
            state.update()
            ((lo, hi),) = state.outcomes["sim"].ranges([0])
            assert lo == 0 and hi >= seen and hi % 100 == 0
            seen = hi
    finally:
        process.kill()
        process.wait()
    assert not any(not damage.torn for damage in state.damage)


def test_another_file_under_a_segments_name_is_refused(tmp_path):
    (tmp_path / "x.mlg").write_bytes(b"this is something else entirely")
    with pytest.raises(LedgerError, match="not a ledger segment"):
        replay(tmp_path, plan_of(sim=1))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\xff" * 5)


@pytest.mark.parametrize("harm", [_cut, _overwrite])
def test_a_record_that_was_changed_after_it_was_read_is_an_error(tmp_path, harm):
    with LedgerWriter(tmp_path, "w", study_id="s1", sync=False) as writer:
        writer.append(chunk([0, 1, 0, 1], failures=(failed(1), failed(3))))
    state = replay(tmp_path, plan_of(sim=4))
    (segment,) = {entry.segment for entry in state.entries()}
    harm(writer.path)
    with pytest.raises(LedgerError, match="was changed at byte"):
        list(state.failures())
    with pytest.raises(LedgerError, match="was changed at byte"):
        list(segment.payloads([entry.header for entry in state.entries()]))
    assert outcomes_of(replay(tmp_path, plan_of(sim=4)).outcomes["sim"]) == [NO_OUTCOME] * 4
