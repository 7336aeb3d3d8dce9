"""Models that travel as files: trainers are independent jobs, which come, go and die as they like.

tournament/trainers/<k>.json                     who is there (`presence`)
tournament/offers/<k>/round_<number>.pt          the model of trainer k in a round, by torch.save
tournament/offers/<k>/round_<number>.json        its standing; comes last, so an offer with it is complete

Every trainer offers its model in every round and reads whom it meets, so nobody answers and nobody is blocked. An offer
stays until all who are there have a checkpoint after its round, because a run that is resumed plays from its
checkpoint again. A trainer waits for the offer of the very round while its owner lives and can be expected to come
in time; otherwise the newest offer counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from merlin.base.files import TEMPORARY_SUFFIX, replacing
from merlin.errors import CheckpointError
from merlin.shards.format.regular_file import read_json
from merlin.train.checkpoint import read_state, write_state
from merlin.train.tournament.exchange import Offer, Standing, State, Waiting
from merlin.train.tournament.presence import Crowd, presence_directory

FORMAT = "merlin-offer"
VERSION = 1
KEPT = 4  # offers that are kept of a trainer at least, for those who are late
_NAME = re.compile(r"round_(\d+)\.json")


class FileTransport:
    """Offers under one directory on a file system that all trainers share.

    `patience` is how many rounds somebody may be behind and still be waited for.
    """

    def __init__(
        self,
        directory: Path,
        index: int,
        num: int,
        *,
        patience: float,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._directory = directory
        self._index = index
        self._patience = patience
        self._note = note
        self._given_up: dict[int, int] = {}  # whom we waited for in vain, and what it had offered
        self._crowd = Crowd(presence_directory(directory), index, num)
        self._crowd.enter()
        for leftover in self._folder(index).glob(f"*{TEMPORARY_SUFFIX}"):
            leftover.unlink(missing_ok=True)

    def participants(self, number: int) -> list[int]:
        return self._crowd.members(number)

    def offer(self, number: int, standing: Standing, state: State) -> None:
        """Written under temporary names; where that fails the others do not wait for it, and a note says so."""
        head = {"format": FORMAT, "version": VERSION, "trainer": self._index, "round": number}
        path = self._path(self._index, number)
        try:
            with replacing(path, durable_name=False) as temporary:
                write_state(temporary, {**head, "state": state})
            with replacing(path.with_suffix(".json"), durable_name=False) as temporary:
                temporary.write_text(json.dumps({**head, **standing.to_json()}) + "\n")
        except (OSError, CheckpointError) as error:
            self._note(f"round {number}: the model could not be offered to the others: {error}")
        self._crowd.update(offered=number)
        self._forget(number)

    def standings(self, number: int, trainers: Sequence[int], limit_s: float) -> Waiting[dict[int, Standing]]:
        end = time.monotonic() + limit_s
        found = {}
        for trainer in trainers:
            which = yield from self._awaited(number, trainer, end)
            standing = None if which is None else self._standing(trainer, which)
            if standing is not None:
                found[trainer] = standing
        return found

    def take(self, number: int, moves: Mapping[int, int], limit_s: float) -> Waiting[Offer | None]:
        giver = moves.get(self._index)
        if giver is None:
            return None
        which = yield from self._awaited(number, giver, time.monotonic() + limit_s)
        return None if which is None else self._read(giver, which)

    def saved(self, number: int, done: bool) -> Waiting[None]:
        if done:
            self._crowd.update(saved=number)
        yield from ()

    def agree(self, number: int) -> Waiting[int]:
        """Nothing to agree upon: what the others offered in later rounds is still there."""
        self._crowd.update(saved=number)
        yield from ()
        return number

    def close(self, finished: bool) -> None:
        self._crowd.leave("finished" if finished else "stopped")

    def _awaited(self, number: int, trainer: int, end: float) -> Waiting[int | None]:
        """The round whose offer of a trainer is used: `number` if it comes before `end`, else its newest; or None."""
        while True:
            # first, since an offer is there before it is told
            promising = self._is_promising(number, trainer)
            rounds = self._rounds(trainer)
            if number in rounds:
                return number
            if not promising:
                return max(rounds, default=None)
            if time.monotonic() >= end:
                seen = self._crowd.look(trainer)
                self._given_up[trainer] = 0 if seen is None else seen.offered
                newest = max(rounds, default=None)
                instead = f"its model of round {newest} counts" if rounds else "it has offered none so far"
                self._note(f"round {number}: trainer {trainer} did not come in time; {instead}")
                return newest
            yield

    def _is_promising(self, number: int, trainer: int) -> bool:
        """Whether the offer of a round may be expected before long."""
        seen = self._crowd.look(trainer)
        return (
            seen is not None
            and self._crowd.is_here(seen)
            and number - 1 - self._patience <= seen.offered < number
            and self._given_up.get(trainer, -1) != seen.offered
        )

    def _read(self, trainer: int, number: int) -> Offer | None:
        """The offer; a newer one if it was removed in the meantime; None, with a note, if it is damaged."""
        try:
            data = read_state(self._path(trainer, number))
        except CheckpointError as error:
            newest = max(self._rounds(trainer), default=None)
            if newest is not None and newest > number:
                return self._read(trainer, newest)
            self._note(f"round {number}: the model of trainer {trainer} is left out: {error}")
            return None
        found = (data.get("format"), data.get("version"), data.get("trainer"), data.get("round"))
        if found != (FORMAT, VERSION, trainer, number):
            self._note(f"{self._path(trainer, number)} is no model of trainer {trainer}; it is left out")
            return None
        return Offer(trainer, number, data["state"])

    def _standing(self, trainer: int, number: int) -> Standing | None:
        try:
            return Standing.from_json(read_json(self._path(trainer, number).with_suffix(".json")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            newest = max(self._rounds(trainer), default=None)
            if newest is not None and newest > number:
                return self._standing(trainer, newest)
            self._note(f"round {number}: the standing of trainer {trainer} cannot be read: {error}")
            return None

    def _forget(self, number: int) -> None:
        """Remove own offers that nobody will ask for any more."""
        border = min(self._crowd.least_saved(), number - 1)
        border = max(border, number - KEPT - math.ceil(self._patience))
        for old in self._rounds(self._index):
            if old <= border:
                path = self._path(self._index, old)
                for gone in (path.with_suffix(".json"), path):
                    with contextlib.suppress(OSError):
                        gone.unlink(missing_ok=True)

    def _rounds(self, trainer: int) -> set[int]:
        """Of which rounds there are offers; by listing, since some file systems remember that a name was not there."""
        try:
            names = [path.name for path in self._folder(trainer).iterdir()]
        except OSError:
            return set()
        return {int(match[1]) for match in map(_NAME.fullmatch, names) if match}

    def _folder(self, trainer: int) -> Path:
        return self._directory / "offers" / str(trainer)

    def _path(self, trainer: int, number: int) -> Path:
        return self._folder(trainer) / f"round_{number:08d}.pt"
