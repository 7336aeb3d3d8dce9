"""A task's file as it is: pictures and text to be looked at, anything else to be kept; never a page of ours."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from merlin.dashboard.followed import FollowedStudy
from merlin.views.study_page import StudyView
from merlin.views.task_files import OpenFile

PART_BYTES = 256 << 10
# pictures that cannot hold a program, as SVG can
_PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
}
_TEXTS = ("script", "log", "text")
_POLICY = "sandbox; default-src 'none'"


class FileAnswer(Response):
    """Sends an open file part by part, and closes it."""

    def __init__(self, opened: OpenFile, study: FollowedStudy) -> None:
        super().__init__(headers=_headers(opened))
        del self.headers["content-length"]  # a log may grow while it is sent
        self._opened, self._study = opened, study

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file, left = self._opened.file, self._opened.size
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while left > 0 and scope["method"] != "HEAD":
                part = await self._study.run(partial(_read, file, min(left, PART_BYTES)))
                if not part:
                    break
                left -= len(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            file.close()


def _read(file: BinaryIO, size: int, view: StudyView) -> bytes:
    return file.read(size)


def _headers(opened: OpenFile) -> dict[str, str]:
    name = PurePosixPath(opened.name)
    picture = _PICTURES.get(name.suffix.lower())
    if picture is not None:
        kind, place = picture, "inline"
    elif opened.kind in _TEXTS:
        kind, place = "text/plain; charset=utf-8", "inline"
    else:
        kind, place = "application/octet-stream", "attachment"
    return {
        "Content-Type": kind,
        "Content-Disposition": f"{place}; filename*=UTF-8''{quote(name.name, safe='', errors='replace')}",
        "Content-Security-Policy": _POLICY,
    }
