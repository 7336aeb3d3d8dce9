"""Starts the dashboard as a command line asks for it, and says where it is."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import webbrowser
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.cli.output import flush, remark
from merlin.cli.study_places import StudyPlaces, study_places
from merlin.errors import MissingExtraError, UsageError
from merlin.views.studies import known_folders
from merlin.workspace.directory import INFO_DIR

if TYPE_CHECKING:
    from merlin.dashboard.addresses import Address
    from merlin.dashboard.security import Door
    from merlin.dashboard.serve import Tls

PACKAGES = ("starlette", "uvicorn", "prometheus_client")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~@:-]+)*")


class DashboardOptions(Struct, frozen=True, kw_only=True):
    """The options of `merlin dashboard`."""

    workspaces: tuple[Path, ...]
    roots: tuple[Path, ...]
    port: int | None
    host: str
    allow_actions: bool
    opens: bool
    ssh_hint: bool
    token_file: Path | None
    root_path: str
    trust_proxy: bool
    allowed_hosts: tuple[str, ...]
    certfile: Path | None
    keyfile: Path | None
    as_json: bool

    def places(self) -> StudyPlaces:
        """The directories of studies and the workspaces that are meant; those of `merlin list`, if none is named."""
        if self.workspaces or self.roots or (Path.cwd() / INFO_DIR).is_dir():
            return study_places(self.workspaces, self.roots)
        return StudyPlaces(roots=known_folders(os.environ), named=[])

    def root_prefix(self) -> str:
        """The root path without a slash at its end. Raises UsageError if it is no path."""
        prefix = self.root_path.rstrip("/")
        if not _ROOT_PATH.fullmatch(prefix):
            raise UsageError(f"--root-path is a path such as /merlin, not {self.root_path!r}")
        return prefix

    def tls(self) -> Tls | None:
        """The certificate. Raises UsageError if it or its key is not given, ConfigError if it cannot be used."""
        if self.certfile is None and self.keyfile is None:
            return None
        if self.certfile is None or self.keyfile is None:
            raise UsageError("HTTPS needs a certificate and its key; give --certfile and --keyfile")
        from merlin.dashboard.serve import Tls

        tls = Tls(certfile=self.certfile, keyfile=self.keyfile)
        tls.check()
        return tls


def run_dashboard(options: DashboardOptions) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises MissingExtraError where the packages for it are not installed."""
    prefix, places = options.root_prefix(), options.places()
    for package in PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, "dashboard", "merlin dashboard")
    from merlin.dashboard.addresses import Address
    from merlin.dashboard.app import make_app
    from merlin.dashboard.hosts import host_names
    from merlin.dashboard.hub import Hub
    from merlin.dashboard.security import Door
    from merlin.dashboard.serve import listen, serve
    from merlin.dashboard.tokens import default_token_file, read_or_make_token

    tls = options.tls()
    token = read_or_make_token(options.token_file or default_token_file(os.environ))
    opened = listen(options.host, options.port)
    port = opened.getsockname()[1]
    door = Door(
        token=token,
        hosts=host_names(options.host, options.allowed_hosts),
        port=port,
        root_path=prefix,
        trusts_proxy=options.trust_proxy,
        allows_actions=options.allow_actions,
    )
    address = Address(host=options.host, port=port, is_secure=tls is not None, root=f"{prefix}/")
    hub = Hub(places.roots, places.named)
    serve(make_app(hub, door), hub, opened, tls, lambda: _announce(options, address, door, places))


def _announce(options: DashboardOptions, address: Address, door: Door, places: StudyPlaces) -> None:
    """Say where the dashboard is; programs get one line of JSON on stdout."""
    from merlin.dashboard.hosts import is_loopback

    url = address.url(door.token.text)
    # the tunnel command needs the name of this machine, which may be slow to find out
    is_far = options.ssh_hint or (is_loopback(options.host) and _is_remote(os.environ))
    tunnel = address.tunnel(os.environ) if is_far else ""
    if not is_loopback(options.host):
        _warn(address)
    if options.as_json:
        facts = {"url": url, "port": address.port, "pid": os.getpid()}
        where = {"roots": [*map(str, places.roots)], "workspaces": [*map(str, places.named)]}
        print(json.dumps({**facts, **where, **({"tunnel": tunnel} if tunnel else {})}))
    else:
        shown = ", ".join(map(str, (*places.roots, *places.named)))
        print(f"the studies in {shown}" if places.roots else shown)
        if tunnel:
            print(f"on your own machine, first: {tunnel}")
        print(f"then open:                  {url}" if tunnel else f"open {url}")
        can = "pages can change studies" if options.allow_actions else "read-only"
        print(f"{can}; Ctrl-C ends the dashboard")
    flush()
    if options.opens:
        _open_browser(address.url(door.ticket.issue()))


def _warn(address: Address) -> None:
    remark(f"merlin: warning: --host {address.host} opens the dashboard to the network")
    if not address.is_secure:
        remark("  without --certfile and --keyfile, whoever listens on the network can read the token")


def _is_remote(env: Mapping[str, str]) -> bool:
    """True if the user sits at another machine than this one."""
    return any(
        env.get(name) for name in ("SSH_CONNECTION", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
    )


def _open_browser(url: str) -> None:
    if sys.platform == "linux" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        remark("merlin: there is no display here; open the address yourself")
        return
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
