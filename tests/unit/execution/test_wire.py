"""Messages between the command and its workers."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import ExecutionError
from merlin.execution.assignment import Assignment
from merlin.execution.wire import Message, MessageChannel, Progress, Result, Run, Stop, received
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


def over_the_wire(message: Message) -> list[Message]:
    ours, theirs = (MessageChannel(end) for end in socket.socketpair())
    ours.send(message)
    ours.close()
    arrived = theirs.receive(wait=True)
    theirs.close()
    return arrived


@given(chunks)
def test_a_chunk_survives_the_wire(chunk: Chunk) -> None:
    for message in (Run(chunk), Run(chunk, Assignment(cores=(0, 3), gpus=("1",), variables={"A": "b"}))):
        assert over_the_wire(message) == [message]


@given(chunks, chunks)
def test_a_result_survives_the_wire(chunk: Chunk, later: Chunk) -> None:
    result = ChunkResult(
        chunk=chunk,
        runs=((0, 5, 1), (5, 6, 0)),
        deferred=(Deferred(chunk=later, delay_s=0.5),),
        busy_s=0.25,
        stop="hard_fail",
        note="exit code 102: \udc80 is no text",
    )
    assert over_the_wire(Result(result)) == [Result(result)]


def test_a_result_without_sense_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="makes no sense"):
        received({"runs": [1]}, ChunkResult)


def test_messages_arrive_whole_and_the_end_is_noticed() -> None:
    a, b = (MessageChannel(s) for s in socket.socketpair())
    assert not b.has_input()
    a.sock.sendall(b'{"op": "stop"}\n{"op": "progress", ')
    assert b.receive() == [Stop()]
    assert b.receive() == []
    a.sock.sendall(b'"ended": 2, "failed": 1}\n')
    assert b.has_input()
    assert b.receive(wait=True) == [Progress(2, 1)]
    a.close()
    assert b.has_input()
    assert b.receive(wait=True) == [] and b.is_closed
    b.send(Stop())
    b.close()


@pytest.mark.parametrize("line", ["what?", "[]", "{}", '{"op": "what"}', '{"op": "run"}', '{"op": "error"}'])
def test_what_is_no_message_is_an_error(line: str) -> None:
    ours, theirs = (MessageChannel(end) for end in socket.socketpair())
    ours.sock.sendall(f"{line}\n".encode())
    with pytest.raises(ExecutionError, match="is no message"):
        theirs.receive(wait=True)
    ours.close()
    theirs.close()


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
