"""Addresses with secrets: `$NAME` is filled in from the environment when a message is sent, and never shown."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping

from merlin.errors import ConfigError

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def filled(text: str, environment: Mapping[str, str]) -> str:
    """The address with its variables filled in. Raises ConfigError if one of them is not set: no second try helps."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environment.get(name):
            raise ConfigError(
                f"the environment variable {name} is not set on {socket.gethostname()}; set it where the study, "
                "or its workers, are started"
            )
        return environment[name]

    return _VARIABLE.sub(value, text)


def without_secrets(text: str, addresses: Iterable[str], environment: Mapping[str, str]) -> str:
    """The text of an error, without the addresses and without the values of variables in them."""
    for address in addresses:
        for match in _VARIABLE.finditer(address):
            name = match[1] or match[2]
            if value := environment.get(name):
                text = text.replace(value, f"${name}")
        text = text.replace(address, "<address>")
    return text
