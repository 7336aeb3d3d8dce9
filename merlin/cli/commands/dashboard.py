"""`merlin dashboard` shows studies in a browser, while they run and afterwards."""

from __future__ import annotations

from typing import Any

import click

from merlin.cli.options import FILE, json_option, places_options


@click.command()
@places_options("Show every study")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N",
    help="Listen here; 0 takes any free port  [default: the first free one from 8765 on].",
)  # fmt: skip
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="Listen at this address; another than this machine's own opens the dashboard to the network.",
)  # fmt: skip
@click.option("--allow-actions", is_flag=True, help="Let pages cancel, rerun, stop workers and submit jobs.")
@click.option("--open", "opens", is_flag=True, help="Open a browser, if there is a display.")
@click.option("--ssh-hint", is_flag=True, help="Print the line for a tunnel first, also outside of ssh.")
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="Keep the token here  [default: ~/.merlin/dashboard-token].",
)
@click.option(
    "--root-path",
    default="",
    metavar="/PATH",
    help="Below which a proxy shows the dashboard, such as /merlin.",
)
@click.option(
    "--trust-proxy",
    is_flag=True,
    help="Believe X-Forwarded-Host, -Proto and -Prefix, which a proxy must set.",
)
@click.option(
    "--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
    help="A name by which browsers reach the dashboard, such as a proxy's; may repeat.",
)  # fmt: skip
@click.option("--certfile", type=FILE, metavar="FILE", help="Serve HTTPS with this certificate.")
@click.option("--keyfile", type=FILE, metavar="FILE", help="The key of the certificate.")
@json_option
def dashboard(**given: Any) -> None:
    """Show studies in a browser: progress, failures, workers, data sets and training, while they change.

    Shows the studies in the current directory, or in each --root, or the WORKSPACEs alone. Only this machine reaches
    it, with the token in the address that is printed. Pages change nothing, unless --allow-actions is given. Ctrl-C
    ends the dashboard, and no study.
    """
    from merlin.cli.dashboards import DashboardOptions, run_dashboard

    run_dashboard(DashboardOptions(**given))
