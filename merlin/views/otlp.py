"""Sends the spans of a study to a collector of OpenTelemetry, or writes them as the same JSON to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from merlin import __version__
from merlin.base.files import replacing
from merlin.errors import ExecutionError, MissingExtraError, UsageError
from merlin.views.spans import SERVICE, Span, Value, resource_of, spans_of
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

BATCH = 512  # spans of one request, or of one line
LIMIT_S = 10.0  # for a request
_STATUS = {"unset": 0, "ok": 1, "error": 2}  # of the protocol
_INTERNAL = 1  # kind of a span: neither a client's nor a server's


def write_otlp_json(workspace: Workspace, path: Path) -> int:
    """Write all spans in OTLP's JSON, one request in a line, as collectors read them; returns their number."""
    num = 0
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for batch in _batches(spans_of(workspace)):
            num += len(batch)
            file.write(json.dumps(_request(resource_of(workspace), batch), separators=(",", ":")) + "\n")
    return num


def _batches(spans: Iterator[Span]) -> Iterator[tuple[Span, ...]]:
    while batch := tuple(islice(spans, BATCH)):
        yield batch


def _request(resource: Mapping[str, Value], spans: tuple[Span, ...]) -> dict[str, Any]:
    scope = {"scope": {"name": SERVICE, "version": __version__}, "spans": [_as_json(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _as_json(span: Span) -> dict[str, Any]:
    parent = {"parentSpanId": f"{span.parent_id:016x}"} if span.parent_id else {}
    return {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        **parent,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "status": {"code": _STATUS[span.status]},
    }


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def send_otlp(workspace: Workspace, endpoint: str) -> int:
    """Send all spans to a collector by HTTP; returns their number.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
        UsageError: this is no address.
        ExecutionError: the collector does not take them.
    """
    url = _url(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError as error:
        raise MissingExtraError("opentelemetry", "traces", "merlin timeline --otlp") from error
    exporter, num = OTLPSpanExporter(endpoint=url, timeout=LIMIT_S), 0
    made = _Made(workspace)
    try:
        for batch in _batches(spans_of(workspace)):
            if exporter.export([made.span(each) for each in batch]) is not SpanExportResult.SUCCESS:
                before = f", which has taken the first {num:,}" if num else ""
                raise ExecutionError(
                    f"no spans could be sent to {url}{before}: is a collector listening there?"
                )
            num += len(batch)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return num


def _url(endpoint: str) -> str:
    """The address of the collector's traces."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--otlp takes an address such as http://localhost:4318, not {endpoint!r}")
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


class _Made:
    """Turns our spans into spans of the SDK."""

    def __init__(self, workspace: Workspace) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._resource = Resource(resource_of(workspace))
        self._scope = InstrumentationScope(SERVICE, __version__)

    def span(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Status, StatusCode

        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            status=Status(StatusCode[span.status.upper()]),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace_id: int, span_id: int) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
