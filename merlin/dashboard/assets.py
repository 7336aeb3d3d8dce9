"""The files that a browser loads: read into memory when they are asked for, and again when they change."""

from __future__ import annotations

import gzip
import hashlib
import html
import mimetypes
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from merlin.base.files import stamp

STATIC = Path(__file__).parent / "static"
SHELL = "index.html"
CHECK_S = 1.0  # between two looks whether files have changed
FOREVER = "public, max-age=31536000, immutable"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".html": "text/html",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
_WORTH_PACKING = ("text/", "image/svg", "application/json")


class Asset(Struct, frozen=True):
    """A file as it is sent."""

    data: bytes
    packed: bytes  # by gzip; b"" if that is not worth it
    media_type: str
    tag: str  # changes with the content


class Assets:
    """The files below a folder; any other name leads nowhere, whatever characters it has."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._checked = float("-inf")
        self._stamps: dict[str, tuple[int, int, int] | None] = {}
        self._files: Mapping[str, Asset] = {}
        self.version = ""  # changes as soon as any file changes

    def shell(self, root: str, status: int = 200) -> Response:
        """The page that draws all pages; `root`: "/" or "/sub/path/"."""
        self._refresh()
        shell = self._files.get(SHELL)
        if shell is None:
            raise HTTPException(500, f"{self._folder / SHELL} is missing; install merlin-ensembles again")
        text = shell.data.decode().replace("{{base}}", html.escape(root)).replace("{{version}}", self.version)
        return Response(text, status, {"Cache-Control": "no-cache, private"}, "text/html")

    def file(self, path: str, asked: Headers) -> Response:
        """The file at "VERSION/NAME" or "NAME". One with the current version in its address is kept for ever."""
        self._refresh()
        version, _, name = path.partition("/")
        asset, is_current = self._files.get(name), version == self.version
        if asset is None:
            asset, is_current = self._files.get(path), False
        if asset is None:
            raise HTTPException(404, f"there is no file {path!r}")
        cache = FOREVER if is_current else "no-cache"
        headers = {"Cache-Control": cache, "ETag": asset.tag, "Vary": "Accept-Encoding"}
        if asset.tag in asked.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        data = asset.data
        if asset.packed and "gzip" in asked.get("accept-encoding", ""):
            data, headers["Content-Encoding"] = asset.packed, "gzip"
        return Response(data, media_type=asset.media_type, headers=headers)

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._checked < CHECK_S:
                return
            found = filter(Path.is_file, sorted(self._folder.rglob("*")))
            paths = {path.relative_to(self._folder).as_posix(): path for path in found}
            stamps = {name: stamp(path) for name, path in paths.items()}
            if stamps != self._stamps or not self._files:
                self._files = {name: _read(path) for name, path in paths.items()}
                self._stamps = stamps
                tags = "".join(f"{name} {asset.tag}\n" for name, asset in self._files.items())
                self.version = hashlib.sha256(tags.encode()).hexdigest()[:16]
            self._checked = time.monotonic()


def _read(path: Path) -> Asset:
    data = path.read_bytes()
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    packed = gzip.compress(data, mtime=0) if media_type.startswith(_WORTH_PACKING) else b""
    return Asset(
        data=data,
        packed=packed if len(packed) < 0.9 * len(data) else b"",
        media_type=media_type,
        tag=f'"{hashlib.sha256(data).hexdigest()[:16]}"',
    )
