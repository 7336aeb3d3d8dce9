"""`merlin notify` shows whom a study tells of what, and sends a test message."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from merlin.cli.options import json_option, spec_or_workspace_argument


@click.command()
@spec_or_workspace_argument
@click.option(
    "--test", "is_test", is_flag=True, help="Send a test message by every entry, now and from here."
)
@json_option
def notify(spec_or_workspace: Path, is_test: bool, as_json: bool) -> None:
    """Show whom the block notify of a spec tells of what, and what they have been told.

    With --test, a message is sent by each of its entries; exits with 1 if one could not be delivered. The variables
    that addresses name are taken from your environment, and on workers from theirs.
    """
    from merlin.cli.notifying import show_notifications, test_notifications

    sys.exit((test_notifications if is_test else show_notifications)(spec_or_workspace, as_json=as_json))
