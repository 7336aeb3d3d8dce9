"""How large a report may become: pictures that find no room are named instead of shown."""

from __future__ import annotations

from msgspec import Struct, field

MOST_BYTES = 2_800_000  # of a report, so that every mail takes it


def size_bytes(html: str) -> int:
    """In the file; bytes of somebody's log that are no UTF-8 become question marks."""
    return len(html.encode("utf-8", "replace"))


class Room(Struct):
    """What is left for pictures."""

    left: int = MOST_BYTES
    left_out: list[str] = field(default_factory=list)  # titles of pictures

    def takes(self, html: str, title: str) -> bool:
        """Give room to a picture, if there is enough; else keep its title."""
        size = size_bytes(html)
        if size > self.left:
            self.left_out.append(title)
            return False
        self.left -= size
        return True
