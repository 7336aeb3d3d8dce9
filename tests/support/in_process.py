"""Commands of merlin in the process of the test, for what they print and return."""

from __future__ import annotations

import pytest

from merlin.cli import main as command_line


def merlin(*words: object) -> int | str | None:
    """The exit code of `merlin …`."""
    with pytest.raises(SystemExit) as caught:
        command_line.main([str(word) for word in words])
    return caught.value.code
