"""How large a report may become: pictures without room are only named."""

from __future__ import annotations

from html import escape

from msgspec import Struct, field

MOST_BYTES = 2_800_000  # of a report, so that any mail can carry it


def size_bytes(html: str) -> int:
    """The size in the file; bytes of a log that are no UTF-8 become question marks."""
    return len(html.encode("utf-8", "replace"))


class Room(Struct):
    """What is left for pictures."""

    left: int = MOST_BYTES
    left_out: list[str] = field(default_factory=list)  # titles of pictures

    def takes(self, html: str, title: str) -> bool:
        """True, and the room is taken, if a picture has enough room; else its title is kept."""
        size = size_bytes(html)
        if size > self.left:
            self.left_out.append(title)
            return False
        self.left -= size
        return True

    def note(self, rest: str) -> str:
        """A paragraph that names what was left out since the last one, and goes on with `rest`; "" for nothing."""
        if not self.left_out:
            return ""
        names = escape(", ".join(self.left_out))
        self.left_out.clear()
        return f'<p class="note">No room was left for: {names}{rest}</p>'
