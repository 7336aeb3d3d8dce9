"""What the ownerships of a process need of it: its configuration and its connections."""

from __future__ import annotations

from dataclasses import dataclass

from merlin.config.model import Config
from merlin.execution.distributed.contracts import Backend, Carrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The configuration and connections that all ownerships of one process share."""

    config: Config
    backend: Backend
    carrier: Carrier
    lease_s: float
