"""Actions on a study, for pages that ask first."""

from __future__ import annotations

from msgspec import Struct, field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from merlin.base.records import as_kind, parsed
from merlin.dashboard.actions import act
from merlin.dashboard.answers import answer
from merlin.dashboard.hub import Hub
from merlin.dashboard.lanes import Lane
from merlin.dashboard.security import Door
from merlin.errors import UsageError

MOST_BYTES = 64 << 10  # of the body


class _Body(Struct, frozen=True):
    steps: list[str] = field(default_factory=list)


class StudyActions:
    """One action at a time for each study."""

    def __init__(self, hub: Hub, door: Door) -> None:
        self.hub, self.door = hub, door
        self._acting: set[str] = set()  # studies

    def route(self, path: str) -> Route:
        return Route(path, self.act, methods=["POST"])

    async def act(self, request: Request) -> Response:
        """Do it, and say what was done."""
        if not self.door.allows_actions:
            raise HTTPException(
                403, "this dashboard only shows; start it with --allow-actions to change things"
            )
        body = await _body_of(request)
        followed = await self.hub.study(request.path_params["id"])
        if followed.id in self._acting:
            raise HTTPException(409, "another action on this study has not ended yet; try again in a moment")
        self._acting.add(followed.id)
        try:
            name = request.path_params["name"]
            # it takes as long as the command, and does not give way, because the command may start a run
            lane = Lane(f"the action {name!r}", gives_way=False)
            done = await lane.run(lambda: act(name, followed.path, body.steps))
        finally:
            self._acting.discard(followed.id)
        return answer(done, 202)


async def _body_of(request: Request) -> _Body:
    """The body of a request. Raises UsageError if it is not valid."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            raise HTTPException(413, f"the body is longer than {MOST_BYTES:,} bytes")
    try:
        return as_kind(parsed(data or b"{}"), _Body)
    except ValueError as error:
        raise UsageError(f'the body must be {{}} or {{"steps": [NAME, …]}}: {error}') from None
