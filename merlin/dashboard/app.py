"""The application: every address, and what answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import merlin
from merlin.base.processes import user_name
from merlin.dashboard.answers import JsonAnswer, answer, refusal_for
from merlin.dashboard.assets import Assets
from merlin.dashboard.event_stream import EventStream
from merlin.dashboard.hub import Hub
from merlin.dashboard.metrics import CONTENT_TYPE, Metrics
from merlin.dashboard.requests import Asked
from merlin.dashboard.security import Door, Guard
from merlin.dashboard.study_actions import StudyActions
from merlin.dashboard.study_answers import StudyAnswers
from merlin.errors import MerlinError


def make_app(hub: Hub, door: Door) -> ASGIApp:
    """The application that `merlin dashboard` serves; it ends all streams of the hub when it is shut down."""
    front = FrontDesk(hub, door)
    answers, actions = StudyAnswers(hub), StudyActions(hub, door)
    routes = [
        Route("/healthz", front.health),
        Route("/metrics", front.metrics),
        Route("/static/{path:path}", front.static),
        Route("/api/session", front.session),
        Route("/api/studies", front.studies),
        Route("/api/events", front.events),
        Route("/api/workers", front.workers),
        *answers.routes("/api/study/{id}"),
        actions.route("/api/study/{id}/actions/{name}"),
        Route("/{path:path}", front.page),
    ]
    handlers = dict.fromkeys((HTTPException, MerlinError, OSError, Exception), _explain)
    return Guard(Starlette(routes=routes, lifespan=front.lifespan, exception_handlers=handlers), door)


class FrontDesk:
    """What is not about one study."""

    def __init__(self, hub: Hub, door: Door) -> None:
        self.hub, self.door, self.assets, self.numbers = hub, door, Assets(), Metrics(hub)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.listing.want()  # so that the first page finds something to show
        yield
        self.hub.close()

    async def page(self, request: Request) -> Response:
        asked = asked_of(request)
        if asked.is_api:
            raise HTTPException(404, f"there is no address {asked.path!r}")
        is_known = asked.path in ("/", "/workers") or asked.path.startswith("/study/")
        return self.assets.shell(asked.root, 200 if is_known else 404)

    async def static(self, request: Request) -> Response:
        return self.assets.file(request.path_params["path"], request.headers)

    async def health(self, request: Request) -> Response:
        return answer({"ok": True})

    async def metrics(self, request: Request) -> Response:
        await self.hub.listing.studies()
        return Response(await self.numbers.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def session(self, request: Request) -> Response:
        return answer(
            {
                "user": user_name(),
                "version": merlin.__version__,
                "actions": self.door.allows_actions,
                "csrf": self.door.token.csrf,
                "root": asked_of(request).root,
            }
        )

    async def studies(self, request: Request) -> Response:
        return answer(await self.hub.listing.studies())

    async def events(self, request: Request) -> Response:
        return EventStream(self.hub.listing.events())

    async def workers(self, request: Request) -> Response:
        return JsonAnswer(await self.hub.workers())


def asked_of(request: Request) -> Asked:
    asked = request.scope["asked"]
    assert isinstance(asked, Asked)
    return asked


async def _explain(request: Request, error: Exception) -> Response:
    return refusal_for(error)
