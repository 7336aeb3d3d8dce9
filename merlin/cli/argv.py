"""Options that take several words (`--vars A=1 B=2`), as upstream has them; click's own take one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)


def is_assignment(word: str) -> bool:
    """True if `word` looks like K=V."""
    return ASSIGNMENT.match(word) is not None


def is_word(word: str) -> bool:
    """True if `word` is no option."""
    return not word.startswith("-") or word == "-"


class ManyOption(click.Option):
    """An option whose flag swallows every following word that `accepts` allows; its value is a tuple.

    With `leaves_last`, the last of the words stays behind when the command would otherwise have no argument
    left: `--steps a b WORKSPACE`.
    """

    def __init__(
        self,
        *args: Any,
        accepts: Callable[[str], bool] = is_word,
        leaves_last: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{**kwargs, "multiple": True})
        self.accepts = accepts
        self.leaves_last = leaves_last


class ManyCommand(click.Command):
    """A command with `ManyOption`s."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(self, args))


def spread(command: click.Command, args: list[str]) -> list[str]:
    """Repeat each `ManyOption`'s flag before each of its words: `--vars A B` becomes `--vars A --vars B`."""
    many = {flag: p for p in command.params if isinstance(p, ManyOption) for flag in p.opts}
    takes_value = _flags_with_value(command)
    out: list[str] = []
    num_arguments = 0
    i = 0
    while i < len(args):
        word = args[i]
        i += 1
        if word == "--":
            out.extend(args[i - 1 :])
            break
        if word in many:
            words = _swallow(args[i:], many[word].accepts)
            i += len(words)
            leave = _is_argument_missing(many[word], words, num_arguments, args[i:], takes_value | set(many))
            kept = words[:-1] if leave else words
            out.extend(piece for value in kept for piece in (word, value))
            out.extend(words[len(kept) :] if kept or words else [word])
            num_arguments += leave
        elif word in takes_value:
            out.extend(args[i - 1 : i + 1])
            i += 1
        else:
            out.append(word)
            num_arguments += is_word(word)
    return out


def _swallow(args: list[str], accepts: Callable[[str], bool]) -> list[str]:
    words: list[str] = []
    for word in args:
        if not is_word(word) or not accepts(word):
            break
        words.append(word)
    return words


def _is_argument_missing(
    option: ManyOption, words: list[str], num_before: int, rest: list[str], flags: set[str]
) -> bool:
    """True if the last of `words` must be the command's argument, because no other word can be."""
    if not option.leaves_last or len(words) < 2 or num_before:
        return False
    previous = ""
    for word in rest:
        if is_word(word) and previous not in flags:
            return False
        previous = word
    return True


def _flags_with_value(command: click.Command) -> set[str]:
    return {
        flag
        for p in command.params
        if isinstance(p, click.Option) and not isinstance(p, ManyOption) and not p.is_flag and not p.count
        for flag in p.opts
    }
