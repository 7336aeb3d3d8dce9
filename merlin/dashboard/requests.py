"""What a request says about where it comes from, before anything is believed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.requests import cookie_parser
from starlette.types import Scope

_PREFIX = re.compile(r"(/[A-Za-z0-9._~@:-]+)+/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as its headers describe it."""

    method: str
    path: str  # below the root path
    root: str  # "/" or "/sub/path/"
    hosts: tuple[str, ...]  # each name that the browser, or a proxy that is trusted, has used
    is_secure: bool
    headers: Headers = field(repr=False)
    query: QueryParams = field(repr=False)

    @property
    def is_api(self) -> bool:
        """True if a program reads the answer, and not a person."""
        return self.path.startswith(("/api/", "/static/")) or self.path in ("/api", "/metrics", "/healthz")

    @property
    def cookies(self) -> Mapping[str, str]:
        return cookie_parser(self.headers.get("cookie", ""))

    @property
    def bearer(self) -> str:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    @property
    def is_same_origin(self) -> bool:
        """False if the browser says that another site's page has made the request."""
        site = self.headers.get("sec-fetch-site")
        if site is not None:  # pages cannot set it, and proxies do not change it
            return site == "same-origin"
        origin = self.headers.get("origin")
        if origin is None:
            return True
        try:
            return urlsplit(origin).netloc.lower() in {host.lower() for host in self.hosts}
        except ValueError:
            return False


def asked_by(scope: Scope, root_path: str, *, trusts_proxy: bool) -> Asked:
    """The request in `scope`. `root_path` ("" or "/sub") is cut off its path if a proxy has left it there."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    root, is_secure = root_path, scope.get("scheme") == "https"
    if trusts_proxy:
        hosts = hosts + _list(headers.get("x-forwarded-host", ""))
        is_secure = is_secure or _list(headers.get("x-forwarded-proto", ""))[:1] == ["https"]
        prefix = headers.get("x-forwarded-prefix", "")
        root = root or (prefix.rstrip("/") if _PREFIX.fullmatch(prefix) else "")
    path = str(scope["path"])
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :] or "/"
    return Asked(
        method=scope["method"],
        path=path,
        root=f"{root}/",
        hosts=tuple(hosts),
        is_secure=is_secure,
        headers=headers,
        query=QueryParams(scope["query_string"]),
    )


def _list(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]
