"""Which names a browser may use for the dashboard: a foreign name that leads to our address is refused."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from msgspec import Struct

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>\d{1,5}))?")
LOOPBACK = ("localhost", "ip6-localhost")


class HostNames(Struct, frozen=True):
    """The names of the dashboard; `any_address`: any IP address will do, because no foreign name can stand for one."""

    names: frozenset[str]
    any_address: bool = False

    def allow(self, host: str) -> bool:
        """True if the value of a Host header is a name of ours; its port may differ, because a tunnel changes it."""
        name = name_of(host)
        if name in self.names or name in LOOPBACK:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


def name_of(host: str) -> str:
    """The name in "name:port", in small letters and without brackets; "" for anything else."""
    match = _HOST.fullmatch(host)
    return match["name"].strip("[]").lower().rstrip(".") if match else ""


def host_names(bound: str, also: Iterable[str] = ()) -> HostNames:
    """The names for a server that is bound to the address or name `bound`."""
    names = {name.lower().strip("[]") for name in also}
    if is_loopback(bound):
        return HostNames(frozenset(names))
    return HostNames(
        frozenset({*names, bound.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}), True
    )


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the address or name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK
