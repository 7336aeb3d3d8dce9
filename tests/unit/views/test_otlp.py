"""A study as spans: the same as OpenTelemetry's own library writes, with right times and ids that stay."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from told_study import told_study

from merlin.errors import ExecutionError, UsageError
from merlin.views.otlp import send_otlp, write_otlp_json
from merlin.views.spans import Span, spans_of
from merlin.workspace.directory import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return told_study(tmp_path)


def by_name(workspace: Workspace) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans_of(workspace):
        found.setdefault(span.name, []).append(span)
    return found


def test_a_study_has_steps_and_steps_have_chunks_with_their_times(workspace: Workspace) -> None:
    found = by_name(workspace)
    (root,) = found["study study"]
    assert (root.parent_id, root.start_ns, root.end_ns) == (0, 1_000_000_000_000, 2_010_000_000_000)
    assert root.status == "error"
    *chunks, sim = found["sim"]
    assert (sim.parent_id, sim.attributes["merlin.planned"]) == (root.span_id, 6)
    assert (sim.start_ns, sim.end_ns) == (1_001_000_000_000, 2_004_000_000_000)
    assert len(chunks) == 4
    assert {chunk.parent_id for chunk in chunks} == {sim.span_id}
    lost = next(chunk for chunk in chunks if chunk.attributes["merlin.interrupted"])
    assert (lost.attributes["host.name"], lost.attributes["merlin.worker"]) == ("n2", "w1")
    assert lost.end_ns - lost.start_ns == 10_000_000_000


def test_ids_follow_from_the_study_and_differ_from_each_other(workspace: Workspace) -> None:
    one, other = list(spans_of(workspace)), list(spans_of(workspace))
    assert one == other
    assert len({span.span_id for span in one}) == len(one)
    assert len({span.trace_id for span in one}) == 1
    assert all(0 < span.span_id < 2**64 and 0 < span.trace_id < 2**128 for span in one)


def test_the_json_is_what_opentelemetry_itself_would_send(workspace: Workspace, tmp_path: Path) -> None:
    from google.protobuf.json_format import Parse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert write_otlp_json(workspace, tmp_path / "spans.json") == 11
    (line,) = (tmp_path / "spans.json").read_text().splitlines()
    request = json.loads(line)
    for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        # hexadecimal by OTLP's own rule for JSON; protobuf's parser wants base64
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = _base64(span[name])
    with collector() as (url, requests):
        send_otlp(workspace, url)
    sent = ExportTraceServiceRequest.FromString(requests[0])
    ours = Parse(json.dumps(request), ExportTraceServiceRequest())
    for spans in (sent.resource_spans[0].scope_spans[0].spans, ours.resource_spans[0].scope_spans[0].spans):
        for span in spans:
            span.ClearField("flags")
    assert list(ours.resource_spans[0].scope_spans[0].spans) == list(
        sent.resource_spans[0].scope_spans[0].spans
    )
    names = {attribute.key for attribute in sent.resource_spans[0].resource.attributes}
    assert {"service.name", "merlin.study_id"} <= names


def _base64(hexadecimal: str) -> str:
    import base64

    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A collector on loopback, and the bodies of the requests that it got."""
    requests: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            requests.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_collector_that_is_not_there_and_a_word_that_is_no_address_are_errors(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("merlin.views.otlp.LIMIT_S", 0.2)
    with pytest.raises(ExecutionError, match="no spans could be sent to"):
        send_otlp(workspace, "http://127.0.0.1:9")
    with pytest.raises(UsageError, match="such as http"):
        send_otlp(workspace, "localhost")
