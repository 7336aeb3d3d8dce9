"""Messages between the command and its workers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.base.records import to_plain
from merlin.errors import ExecutionError
from merlin.execution.wire import MessageChannel, received
from merlin.plan.tasks import Chunk, ChunkResult, Deferred

ranges = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3).map(tuple)
chunks = st.builds(
    Chunk,
    instance=st.text(),
    lo=st.integers(0, 10),
    hi=st.integers(11, 10**8),
    attempt=st.integers(1, 9),
    holes=ranges,
    retries=st.integers(0, 3),
    use_restart=st.booleans(),
    isolate=st.booleans(),
    absent_rows=ranges,
)


@given(chunks)
def test_a_chunk_survives_the_wire(chunk: Chunk) -> None:
    assert received(json.loads(json.dumps(to_plain(chunk))), Chunk) == chunk


@given(chunks, chunks)
def test_a_result_survives_the_wire(chunk: Chunk, later: Chunk) -> None:
    result = ChunkResult(
        chunk=chunk,
        runs=((0, 5, 1), (5, 6, 0)),
        deferred=(Deferred(chunk=later, delay_s=0.5),),
        busy_s=0.25,
        stop="hard_fail",
        note="exit code 102",
    )
    assert received(json.loads(json.dumps(to_plain(result))), ChunkResult) == result


def test_a_result_without_sense_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="makes no sense"):
        received({"runs": [1]}, ChunkResult)


def test_messages_arrive_whole_and_the_end_is_noticed() -> None:
    a, b = (MessageChannel(s) for s in socket.socketpair())
    assert not b.has_input()
    a.sock.sendall(b'{"op": "one"}\n{"op": ')
    assert b.receive() == [{"op": "one"}]
    assert b.receive() == []
    a.sock.sendall(b'"two"}\n')
    assert b.has_input()
    assert b.receive(wait=True) == [{"op": "two"}]
    a.close()
    assert b.has_input()
    assert b.receive(wait=True) == [] and b.is_closed
    b.send({"op": "late"})
    b.close()


MEET = """
import dataclasses, sys, threading
from merlin.base.records import as_kind
sys.setswitchinterval(1e-6)
for _ in range(300):
    inner = dataclasses.make_dataclass("Inner", [("x", int), ("y", tuple[tuple[int, int], ...])])
    outer = dataclasses.make_dataclass("Outer", [("a", inner), ("b", list[inner])])
    together = threading.Barrier(4)
    data = {"a": {"x": 1, "y": []}, "b": [{"x": 1, "y": [[1, 2]]}]}
    def meet():
        together.wait()
        as_kind(data, outer)
    threads = [threading.Thread(target=meet) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_threads_may_meet_a_kind_of_record_for_the_first_time_together() -> None:
    assert subprocess.run([sys.executable, "-c", MEET], timeout=120).returncode == 0
