"""Who is told when something happens to a study: the entries of the spec's block `notify`, as the plan keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.spec.notify_words import CHANNELS, ENDS, STALL_S

if TYPE_CHECKING:
    from merlin.spec.notify_block import Notify


class NotifyRule(Struct, frozen=True, kw_only=True):
    """One entry. `$NAME` in an address is filled in when a message is sent, so that no secret is kept here."""

    when: tuple[str, ...]  # finished, failed, stopped, failures, stall, refused
    channel: str  # one of merlin.notify.channels: cmd, webhook, mail, apprise
    to: tuple[str, ...]  # the command, or the addresses
    above: float | None = 0.0  # failed tasks: < 1: share of all tasks; >= 1: count; None: never
    after_s: float = STALL_S  # without the end of a task


def notify_rules(blocks: Iterable[Notify], fill: Callable[[str], str]) -> tuple[NotifyRule, ...]:
    """The entries of a spec; `fill` puts values in the place of `$(NAME)`."""
    rules = []
    for block in blocks:
        channel = next(name for name in CHANNELS if getattr(block, name) is not None)
        given = getattr(block, channel)
        when = dict.fromkeys(e for event in block.when for e in (ENDS if event == "end" else (event,)))
        rules.append(
            NotifyRule(
                when=tuple(when),
                channel=channel,
                to=tuple(map(fill, (given,) if isinstance(given, str) else given)),
                above=block.above,
                after_s=block.after,
            )
        )
    return tuple(rules)
