"""Reads what the last owner of a study has left in its mailbox; forged entries are refused."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator

from merlin.errors import ForgedMessageError
from merlin.execution.conductor import durations_of, memories_of, quarantined_nodes
from merlin.execution.distributed.contracts import Letter, Mailbox, letter_order
from merlin.execution.distributed.messages import open_chunk, open_report
from merlin.execution.distributed.study import Study
from merlin.ledger.collect_again import to_collect_again
from merlin.ledger.replay import Replay
from merlin.plan.owner import Handout
from merlin.plan.reports import ChunkReport
from merlin.plan.take_over import Legacy

log = logging.getLogger("merlin.worker")


def handouts_in(mailbox: Mailbox, study_id: str, key: bytes) -> tuple[list[Handout], list[str]]:
    """The valid offers and leases, and the leases whose chunks are forged."""
    handouts, forged = [], []
    for offer in mailbox.offers():
        try:
            chunk = open_chunk(offer.envelope, study_id, offer.lease, key)
        except ForgedMessageError as error:
            log.warning("an offer is void: %s", error)
            forged.append(offer.lease)
        else:
            handouts.append(Handout(chunk=chunk, since=offer.since, worker=offer.worker))
    return handouts, forged


def all_letters(mailbox: Mailbox) -> Iterator[Letter]:
    """All letters; handled ones are kept for a while, and are among them."""
    after = ""
    while letters := mailbox.letters(after):
        yield from letters
        after = letters[-1].id


def report_in(letter: Letter, study_id: str, key: bytes) -> ChunkReport | None:
    """The report in a letter; None if there is none, or a forged one."""
    if letter.kind != "report":
        return None
    try:
        return open_report(letter.report, study_id, letter.lease, key)
    except ForgedMessageError as error:
        log.error("refused: %s", error)
        return None


def legacy_of(
    study: Study,
    session: str,
    found: Replay,
    handouts: Collection[Handout],
    letters: Iterable[Letter],
    read: str,
    key: bytes,
) -> Legacy:
    """What the last owner has left in the ledger and the mailbox; `read` is the last letter that it handled."""
    letters = list(letters)
    reports = [
        (letter, report) for letter in letters if (report := report_in(letter, study.id, key)) is not None
    ]
    last = letter_order(read)
    return Legacy(
        handouts=handouts,
        outcomes=found.outcomes,
        memories=memories_of(found, session),
        taken={letter.lease: letter.worker for letter in letters if letter.kind == "taken"},
        dealt_with=[report for letter, report in reports if letter_order(letter.id) <= last],
        unread=[report for letter, report in reports if letter_order(letter.id) > last],
        durations=durations_of(found, study.workspace.plan),
        collect_only=to_collect_again(found, study.workspace.plan),
        bad_nodes=quarantined_nodes(found, session),
    )
