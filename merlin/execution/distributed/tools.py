"""What the ownerships of a process need of it: its configuration and its connections."""

from __future__ import annotations

from msgspec import Struct

from merlin.config.model import Config
from merlin.execution.distributed.contracts import Backend, Carrier


class Tools(Struct, frozen=True, kw_only=True):
    """The configuration and connections that all ownerships of one process share."""

    config: Config
    backend: Backend
    carrier: Carrier
    lease_s: float
