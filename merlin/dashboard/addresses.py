"""The addresses that are printed: for a browser here, and for one on another machine through a tunnel."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping

from msgspec import Struct

from merlin.base.processes import user_name

# by scheduler: the variable with the host that submitted the job; a node is reached through that host
_SUBMIT_HOSTS = ("SLURM_SUBMIT_HOST", "PBS_O_HOST", "LSB_SUB_HOST")
_EVERYWHERE = ("0.0.0.0", "::")


class Address(Struct, frozen=True, kw_only=True):
    """Where the dashboard listens."""

    host: str
    port: int
    is_secure: bool
    root: str  # "/" or "/sub/path/"

    def url(self, token: str) -> str:
        """The URL that a browser opens; behind a proxy, only the part after the root path is the same."""
        return f"{self.origin}{self.root}?token={token}"

    @property
    def origin(self) -> str:
        host = _own_name() if self.host in _EVERYWHERE else self.host
        return f"{'https' if self.is_secure else 'http'}://{_bracketed(host)}:{self.port}"

    def tunnel(self, env: Mapping[str, str]) -> str:
        """The command that makes the same address work on the user's own machine."""
        target = "127.0.0.1" if self.host in _EVERYWHERE else self.host
        words = ["ssh", "-N", "-L", f"{self.port}:{_bracketed(target)}:{self.port}"]
        here, user = _own_name(), user_name()
        submit_host = next((env[name] for name in _SUBMIT_HOSTS if env.get(name)), "")
        if submit_host and submit_host.partition(".")[0] != socket.gethostname().partition(".")[0]:
            words += ["-J", f"{user}@{submit_host}"]
        return shlex.join([*words, f"{user}@{here}"])


def _own_name() -> str:
    """The name of this machine, with its domain if that is known."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
