"""Who may come in, and what a browser may do with what it gets.

- The token opens the dashboard: as `Authorization: Bearer`, or once in an address, which leaves a cookie.
- A request must use a name of ours in its Host header, so that no foreign name can be made to lead here.
- Whoever changes something must come from our own pages: their header X-Merlin-CSRF, and what the browser says of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from merlin.dashboard.answers import refusal, refusal_for
from merlin.dashboard.hosts import HostNames
from merlin.dashboard.requests import Asked, asked_by
from merlin.dashboard.sign_in import sign_in_page
from merlin.dashboard.tokens import Ticket, Token, same

READING = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/healthz",)  # that need no token
POLICY = (
    "default-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'; "
    "img-src 'self' data:"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What a request needs to be let in."""

    token: Token = field(repr=False)
    ticket: Ticket = field(default_factory=Ticket, repr=False)
    hosts: HostNames
    port: int
    root_path: str = ""  # "/sub", as a browser sees it behind a proxy
    trusts_proxy: bool = False  # believes X-Forwarded-Host, -Proto and -Prefix
    allows_actions: bool = False

    @property
    def cookie_name(self) -> str:
        """The name has the port in it, because a browser does not keep cookies of different ports apart."""
        return f"merlin_dashboard_{self.port}"

    def lets_in(self, asked: Asked) -> bool:
        """True if the request has the token, or the cookie that was given for it."""
        if asked.bearer:
            return same(asked.bearer, self.token.text)
        cookie = asked.cookies.get(self.cookie_name, "")
        return bool(cookie) and same(cookie, self.token.cookie)

    def is_of_our_pages(self, asked: Asked) -> bool:
        """True if the request comes from one of our own pages, or from a program that has the token."""
        if asked.bearer:  # which no foreign page can send
            return True
        return asked.is_same_origin and same(asked.headers.get("x-merlin-csrf", ""), self.token.csrf)


class Guard:
    """Checks requests before the application gets them, with `asked` and a path below the root path."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = asked_by(scope, self.door.root_path, trusts_proxy=self.door.trusts_proxy)
        sender = _Sender(send)
        inside = {**scope, "path": asked.path, "root_path": "", "asked": asked}
        try:
            await (self._refusal(asked) or self.app)(inside, receive, sender)
        except Exception as error:
            answer = refusal_for(error)
            if sender.has_begun:
                raise
            await answer(inside, receive, sender)

    def _refusal(self, asked: Asked) -> Response | None:
        """The answer to a request that does not come through; None if it does."""
        foreign = [host for host in asked.hosts if not self.door.hosts.allow(host)]
        if foreign or not asked.hosts:
            name = foreign[0] if foreign else ""
            why = f"{name!r} is no name of this dashboard; if it is, start it with --allow-host NAME"
            return refusal(400, why)
        if asked.path in OPEN_PATHS:
            return None
        if not asked.is_api and asked.method in ("GET", "HEAD") and "token" in asked.query:
            return self._sign_in(asked)
        if not self.door.lets_in(asked):
            return _who_are_you(asked)
        if asked.method not in READING and not self.door.is_of_our_pages(asked):
            return refusal(403, "this request does not come from a page of this dashboard")
        return None

    def _sign_in(self, asked: Asked) -> Response:
        """Leave a cookie for a right token, and lead to the address without it."""
        given = asked.query["token"]
        is_right = same(given, self.door.token.text) or self.door.ticket.take(given)
        if not is_right and not self.door.lets_in(asked):
            return sign_in_page(is_refused=True)
        rest = [(name, value) for name, value in asked.query.multi_items() if name != "token"]
        place = asked.root + quote(asked.path.lstrip("/"), safe="/~:@!$&'()*+,;=")
        answer = RedirectResponse(f"{place}?{urlencode(rest)}" if rest else place, 303)
        answer.set_cookie(
            self.door.cookie_name,
            self.door.token.cookie,
            path=asked.root,
            httponly=True,
            samesite="strict",
            secure=asked.is_secure,
        )
        return answer


def _who_are_you(asked: Asked) -> Response:
    """The answer to a request without a token; a person gets a page."""
    if asked.is_api or asked.method not in ("GET", "HEAD"):
        return refusal(
            401,
            "no token, or a wrong one; open the address that merlin dashboard has printed",
            {"WWW-Authenticate": "Bearer"},
        )
    # if a link of another site led here, the browser sends the cookie only when our page itself asks again
    return sign_in_page(asks_again=asked.headers.get("sec-fetch-site") == "cross-site")


class _Sender:
    """Passes on what is sent, with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)
