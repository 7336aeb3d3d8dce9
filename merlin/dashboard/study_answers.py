"""The answers about one study; each value is made by a read-model, and sent as it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from merlin.dashboard.answers import JsonAnswer, to_json
from merlin.dashboard.event_stream import EventStream
from merlin.dashboard.file_answer import FileAnswer
from merlin.dashboard.followed import FollowedStudy
from merlin.dashboard.hub import Hub
from merlin.errors import UsageError
from merlin.status.failures import group_failures
from merlin.train.results.training_page import training_page
from merlin.views.data_page import data_page, image_png
from merlin.views.heat import heat
from merlin.views.study_page import StudyView
from merlin.views.task_files import open_file, read_file
from merlin.views.task_list import MAX_ROWS, tasks
from merlin.views.task_page import task_page
from merlin.workspace.directory import open_workspace, shown_together

MOST_DIGITS = 15  # of a number in an address
NUM_ROWS = 50
MOST_BYTES = 64 << 10  # of one part of a file
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)


class StudyAnswers:
    """An endpoint for each address below that of a study."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    def routes(self, below: str) -> list[Route]:
        endpoints = {
            "": self.study,
            "/events": self.events,
            "/throughput": self.throughput,
            "/heat": self.heat,
            "/tasks": self.tasks,
            "/task": self.task,
            "/file": self.file,
            "/raw": self.raw,
            "/failures": self.failures,
            "/explain": self.explain,
            "/data/{key:path}/image": self.image,
            "/data/{key:path}": self.data,
            "/training/{key:path}": self.training,
            "/report": self.report,
        }
        return [Route(below + path, endpoint) for path, endpoint in endpoints.items()]

    async def study(self, request: Request) -> Response:
        followed = await self._followed(request)
        return JsonAnswer(await followed.study())

    async def events(self, request: Request) -> Response:
        followed = await self._followed(request)
        await followed.study()  # raises now, where the stream would only be empty
        return EventStream(followed.events())

    async def throughput(self, request: Request) -> Response:
        return await self._from_ledger(request, ("throughput",), lambda view: view.throughput())

    async def heat(self, request: Request) -> Response:
        step = _word(request, "step")
        return await self._from_ledger(request, ("heat", step), lambda view: heat(view, step))

    async def tasks(self, request: Request) -> Response:
        step, outcome = _word(request, "step", ""), _word(request, "outcome", "")
        after, limit = _number(request, "after", 0), _number(request, "limit", NUM_ROWS)
        sample = _number(request, "sample") if request.query_params.get("sample") else None
        if limit > MAX_ROWS:
            raise UsageError(f"limit is {MAX_ROWS} at most, not {limit}")
        return await self._from_ledger(
            request,
            ("tasks", step, outcome, after, limit, sample),
            lambda view: tasks(view, step, outcome, after=after, limit=limit, sample=sample),
        )

    async def task(self, request: Request) -> Response:
        instance, task = _word(request, "instance"), _number(request, "task")
        return await self._from_files(
            request, ("task", instance, task), lambda view: task_page(view, instance, task)
        )

    async def file(self, request: Request) -> Response:
        instance, task = _word(request, "instance"), _number(request, "task")
        name, from_end = _word(request, "name"), request.query_params.get("offset", "").startswith("-")
        offset = -_number(request, "offset", sign="-") if from_end else _number(request, "offset", 0)
        limit = min(_number(request, "limit", MOST_BYTES), MOST_BYTES)
        return await self._from_files(
            request,
            ("file", instance, task, name, offset, limit),
            lambda view: read_file(view, instance, task, name, offset, limit),
        )

    async def raw(self, request: Request) -> Response:
        instance, task, name = _word(request, "instance"), _number(request, "task"), _word(request, "name")
        followed = await self._followed(request)
        opened = await followed.run(lambda view: open_file(view, instance, task, name))
        return FileAnswer(opened, followed)

    async def failures(self, request: Request) -> Response:
        followed = await self._followed(request)
        groups, is_current = await followed.read_failures(lambda view: to_json(_failures(view.path)))
        return JsonAnswer(b'{"groups":%s,"is_current":%s}' % (groups, to_json(is_current)))

    async def explain(self, request: Request) -> Response:
        followed = await self._followed(request)
        await followed.study()
        page = followed.page
        return JsonAnswer(to_json({"obstacles": [] if page is None else page.obstacles}))

    async def data(self, request: Request) -> Response:
        key = request.path_params["key"]
        return await self._from_files(request, ("data", key), lambda view: data_page(view.data_set(key)))

    async def image(self, request: Request) -> Response:
        key, field, row = request.path_params["key"], _word(request, "field"), _number(request, "row", 0)
        followed = await self._followed(request)
        png = await followed.read_files(
            ("image", key, field, row), lambda view: image_png(view.data_set(key), field, row)
        )
        return Response(png, media_type="image/png")

    async def training(self, request: Request) -> Response:
        key = request.path_params["key"]
        return await self._from_files(
            request, ("training", key), lambda view: training_page(view.training_run(key))
        )

    async def report(self, request: Request) -> Response:
        """The study as one page, which is a document of its own: it may draw itself, and nothing more."""
        followed = await self._followed(request)
        page = await followed.read_all("report", lambda view: _report(view.path))
        name = quote(f"{followed.id}-report.html", safe="")
        headers = {
            "Content-Security-Policy": REPORT_POLICY,
            "Content-Disposition": f"inline; filename*=UTF-8''{name}",
        }
        return HTMLResponse(page, headers=headers)

    async def _followed(self, request: Request) -> FollowedStudy:
        return await self.hub.study(request.path_params["id"])

    async def _from_ledger(
        self, request: Request, key: Hashable, make: Callable[[StudyView], object]
    ) -> Response:
        """The answer for a value that changes only when the ledger has grown."""
        followed = await self._followed(request)
        return JsonAnswer(await followed.read(key, lambda view: to_json(make(view))))

    async def _from_files(
        self, request: Request, key: Hashable, make: Callable[[StudyView], object]
    ) -> Response:
        """The answer for a value that may change at any time."""
        followed = await self._followed(request)
        return JsonAnswer(await followed.read_files(key, lambda view: to_json(make(view))))


def _failures(path: Path) -> list[object]:
    return [group for study in shown_together(open_workspace(path)) for group in group_failures(study)]


def _report(path: Path) -> bytes:
    from merlin.report.page import report_html  # heavy, and rarely asked for

    return report_html(open_workspace(path)).encode("utf-8", "replace")


def _word(request: Request, name: str, default: str | None = None) -> str:
    """A value of the query. Raises UsageError if it is missing, or has a character that no name has."""
    value = request.query_params.get(name, default)
    if value is None:
        raise UsageError(f"the address lacks {name}=")
    if "\0" in value:
        raise UsageError(f"{name}= holds a character that no name has")
    return value


def _number(request: Request, name: str, default: int | None = None, *, sign: str = "") -> int:
    """A whole number of the query, without a sign or with `sign`. Raises UsageError for anything else."""
    value = request.query_params.get(name, "").removeprefix(sign)
    if not value and default is not None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS):
        raise UsageError(f"{name}= must be a whole number, not {value[:50]!r}")
    return int(value)
