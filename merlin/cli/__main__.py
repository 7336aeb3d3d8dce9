"""`python -m merlin.cli` is the `merlin` command."""

from merlin.cli.main import command

command()
