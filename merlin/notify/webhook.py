"""Posts the facts, as JSON, to a web address. Certificates are verified, and redirects are refused."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import IO
from urllib.parse import urlsplit

from merlin import __version__
from merlin.errors import NotifyError
from merlin.notify.addresses import filled
from merlin.notify.notice import Message


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Refuse the redirect, which becomes an error: the facts go only where the spec says."""


def send(to: Sequence[str], message: Message, environment: Mapping[str, str], limit_s: float) -> None:
    for address in to:
        _post(filled(address, environment), json.dumps(message.facts()).encode(), limit_s)


def _post(address: str, body: bytes, limit_s: float) -> None:
    """Post the facts. Errors name only the host, not the address, which may be secret."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        raise NotifyError("the address of the webhook is not a URL") from None
    if parts.scheme not in ("https", "http") or not host:
        raise NotifyError("the address of the webhook does not begin with https:// or http:// and a host")
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"merlin/{__version__}"}
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        request = urllib.request.Request(address, data=body, headers=headers, method="POST")
        with opener.open(request, timeout=limit_s) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        hint = "; redirects are not followed" if 300 <= error.code < 400 else ""
        raise NotifyError(f"{host} answered with HTTP {error.code}{hint}") from None
    except urllib.error.URLError as error:
        raise NotifyError(f"{host} cannot be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotifyError(f"{host} cannot be reached: {type(error).__name__}") from None
