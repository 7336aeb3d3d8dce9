"""Models that travel as files: trainers are independent jobs, which come, go and die as they like.

tournament/trainers/<k>.json                     which trainers are there (`presence`)
tournament/offers/<k>/round_<number>.pt          the model of trainer k in a round, by torch.save
tournament/offers/<k>/round_<number>.json        its summary; comes last, so an offer with it is complete

Every trainer offers its model in every round, and reads the offers of those that it meets, so no trainer has
to answer and none is blocked. An offer stays until all who are there have a checkpoint after its round,
because a run that is resumed plays from its checkpoint again. A trainer waits for the offer of exactly this
round while its owner lives and can be expected to come in time; otherwise the newest offer counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from merlin.base.files import TEMPORARY_SUFFIX, replacing, write_text
from merlin.base.records import FileFormat, as_kind, to_plain
from merlin.errors import CheckpointError
from merlin.shards.format.regular_file import read_json
from merlin.train.state_file import State, read_state, write_state
from merlin.train.tournament.averaging import Total, who_counts
from merlin.train.tournament.exchange import Mean, OfferedModel, Summary, Waiting
from merlin.train.tournament.presence import Participants, presence_directory

FORMAT = FileFormat("merlin-offer", 1)
VALUES = "values"  # values to be averaged, which an offer has in place of a complete state
KEPT = 4  # offers that are kept of a trainer at least, for those who are late
_NAME = re.compile(r"round_(\d+)\.json")


class FileTransport:
    """Offers under one directory on a file system that all trainers share.

    `patience` is how many rounds a trainer may be behind and is still waited for; `between` is how many
    rounds there are from one checkpoint to the next.
    """

    def __init__(
        self,
        directory: Path,
        index: int,
        num: int,
        *,
        patience: float,
        between: int = 1,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._directory = directory
        self._index = index
        self._patience = patience
        self._between = between
        self._note = note
        self._given_up: dict[int, int] = {}  # who did not come in time, and its newest offer then
        self._participants = Participants(presence_directory(directory), index, num)
        self._participants.enter()
        for leftover in self._folder(index).glob(f"*{TEMPORARY_SUFFIX}"):
            leftover.unlink(missing_ok=True)

    def participants(self, number: int) -> list[int]:
        return self._participants.members(number)

    def offer(self, number: int, summary: Summary, state: State) -> None:
        """Write the model under temporary names.

        If that fails, a note says so, and the others do not wait for this offer.
        """
        head = {**FORMAT.head(), "trainer": self._index, "round": number}
        path = self._path(self._index, number)
        try:
            with replacing(path, durable_name=False) as temporary:
                write_state(temporary, {**head, "state": state})
            text = json.dumps({**head, **to_plain(summary)}) + "\n"
            write_text(path.with_suffix(".json"), text, durable_name=False)
        except (OSError, CheckpointError) as error:
            self._note(f"round {number}: the model could not be offered to the others: {error}")
        self._participants.update(offered=number)
        self._forget(number)

    def summaries(self, number: int, trainers: Sequence[int], limit_s: float) -> Waiting[dict[int, Summary]]:
        end = time.monotonic() + limit_s
        found = {}
        for trainer in trainers:
            which = yield from self._await(number, trainer, end)
            summary = None if which is None else self._summary(trainer, which)
            if summary is not None:
                found[trainer] = summary
        return found

    def take(self, number: int, moves: Mapping[int, int], limit_s: float) -> Waiting[OfferedModel | None]:
        giver = moves.get(self._index)
        if giver is None:
            return None
        which = yield from self._await(number, giver, time.monotonic() + limit_s)
        return None if which is None else self._read(giver, which)

    def mean(self, number: int, own: Tensor, limit_s: float) -> Waiting[Mean | None]:
        """The mean of the newest models, except those that are far behind, unreadable or not finite."""
        self.offer(number, Summary({}, 0), {VALUES: own})
        end = time.monotonic() + limit_s
        rounds = {self._index: number}
        for trainer in self.participants(number):
            if trainer != self._index:
                which = yield from self._await(number, trainer, end)
                rounds |= {} if which is None else {trainer: which}
        total = Total()
        for trainer in who_counts(rounds):
            if trainer == self._index:
                total.add(trainer, own)
            elif (offer := self._read(trainer, rounds[trainer])) is not None:
                total.add(trainer, offer.state[VALUES])
        return total.mean()

    def saved(self, number: int, done: bool) -> Waiting[None]:
        if done:
            self._participants.update(saved=number)
        yield from ()

    def agree(self, number: int) -> Waiting[int]:
        """Return this trainer's own round: what the others offered in later rounds is still there."""
        self._participants.update(saved=number)
        yield from ()
        return number

    def close(self, finished: bool) -> None:
        self._participants.leave("finished" if finished else "stopped")

    def _await(self, number: int, trainer: int, end: float) -> Waiting[int | None]:
        """The round whose offer is used: `number` if it comes before `end`, else the newest, or None."""
        while True:
            # first, since an offer is there before it is reported
            expected = self._is_expected(number, trainer)
            rounds = self._rounds(trainer)
            if number in rounds:
                return number
            if not expected:
                return max(rounds, default=None)
            if time.monotonic() >= end:
                seen = self._participants.look(trainer)
                self._given_up[trainer] = 0 if seen is None else seen.offered
                newest = max(rounds, default=None)
                instead = f"its model of round {newest} counts" if rounds else "it has offered none so far"
                self._note(f"round {number}: trainer {trainer} did not come in time; {instead}")
                return newest
            yield

    def _is_expected(self, number: int, trainer: int) -> bool:
        """True if the offer of a round may be expected before long."""
        seen = self._participants.look(trainer)
        return (
            seen is not None
            and self._participants.is_present(seen)
            and number - 1 - self._patience <= seen.offered < number
            and self._given_up.get(trainer, -1) != seen.offered
        )

    def _read(self, trainer: int, number: int) -> OfferedModel | None:
        """The offer; a newer one if it was removed in the meantime; None, with a note, if it is damaged."""
        try:
            data = read_state(self._path(trainer, number))
        except CheckpointError as error:
            newest = max(self._rounds(trainer), default=None)
            if newest is not None and newest > number:
                return self._read(trainer, newest)
            self._note(f"round {number}: the model of trainer {trainer} is left out: {error}")
            return None
        if not FORMAT.is_of(data) or (data.get("trainer"), data.get("round")) != (trainer, number):
            self._note(f"{self._path(trainer, number)} is no model of trainer {trainer}; it is left out")
            return None
        return OfferedModel(trainer, number, data["state"])

    def _summary(self, trainer: int, number: int) -> Summary | None:
        try:
            return as_kind(read_json(self._path(trainer, number).with_suffix(".json")), Summary)
        except (OSError, ValueError) as error:
            newest = max(self._rounds(trainer), default=None)
            if newest is not None and newest > number:
                return self._summary(trainer, newest)
            self._note(f"round {number}: the summary of trainer {trainer} cannot be read: {error}")
            return None

    def _forget(self, number: int) -> None:
        """Remove this trainer's offers that nobody will ask for any more."""
        border = min(self._participants.least_saved(), number - 1)
        border = max(border, number - KEPT + 1 - self._between - math.ceil(self._patience))
        for old in self._rounds(self._index):
            if old <= border:
                path = self._path(self._index, old)
                for gone in (path.with_suffix(".json"), path):
                    with contextlib.suppress(OSError):
                        gone.unlink(missing_ok=True)

    def _rounds(self, trainer: int) -> set[int]:
        """The rounds of which there are offers; by listing, as some file systems remember that a name was not there."""
        try:
            names = [path.name for path in self._folder(trainer).iterdir()]
        except OSError:
            return set()
        return {int(match[1]) for match in map(_NAME.fullmatch, names) if match}

    def _folder(self, trainer: int) -> Path:
        return self._directory / "offers" / str(trainer)

    def _path(self, trainer: int, number: int) -> Path:
        return self._folder(trainer) / f"round_{number:08d}.pt"
