"""`python -m merlin` is the `merlin` command."""

from merlin.cli.main import command

command()
