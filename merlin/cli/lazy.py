"""Commands whose modules are imported when they are called, and not before; some of these need PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from merlin.errors import MissingExtraError


class LazyGroup(click.Group):
    """A click group over a table: name -> (module below `package`, attribute, help line).

    The help page is drawn from the table alone, so it loads no module.
    """

    def __init__(
        self, *args: Any, package: str, lazy_commands: Mapping[str, tuple[str, str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.package = package
        self.lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy_commands:
            return None
        module, attribute, _ = self.lazy_commands[cmd_name]
        command = getattr(import_module(f"{self.package}.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does, and suggest a similar one for a name that does not exist."""
        if args and args[0] not in self.lazy_commands and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.lazy_commands, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" See '{ctx.command_path} --help'."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """Complete names as click does, without loading every command for its help line."""
        found: list[CompletionItem[Any]] = [
            CompletionItem(name, help=text)
            for name, (_, _, text) in self.lazy_commands.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self.lazy_commands.items()])


@contextmanager
def needing_torch(purpose: str) -> Iterator[None]:
    """Explain which extra is missing where PyTorch is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "train", purpose) from error
