"""Messages between the command and its workers."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import ExecutionError
from merlin.execution.wire import Channel, from_json, to_json
from merlin.study.tasks import Chunk, ChunkResult, Deferred

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
    assert from_json(json.loads(json.dumps(to_json(chunk))), Chunk) == chunk


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
    assert from_json(json.loads(json.dumps(to_json(result))), ChunkResult) == result


def test_a_result_without_sense_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="makes no sense"):
        from_json({"runs": [1]}, ChunkResult)


def test_messages_arrive_whole_and_the_end_is_noticed() -> None:
    a, b = (Channel(s) for s in socket.socketpair())
    assert not b.has_news()
    a.sock.sendall(b'{"op": "one"}\n{"op": ')
    assert b.receive() == [{"op": "one"}]
    assert b.receive() == []
    a.sock.sendall(b'"two"}\n')
    assert b.has_news()
    assert b.receive(wait=True) == [{"op": "two"}]
    a.close()
    assert b.has_news()
    assert b.receive(wait=True) == [] and b.is_closed
    b.send({"op": "late"})
    b.close()
