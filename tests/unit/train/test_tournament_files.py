"""Models that travel as files, and who is waited for. All transports of a test live in its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from msgspec.structs import asdict, replace
from train_run import state_digest

from merlin.train.tournament import files, presence
from merlin.train.tournament.exchange import Summary
from merlin.train.tournament.files import FileTransport
from merlin.train.tournament.presence import (
    FORMAT,
    SILENCE_S,
    announce,
    presence_directory,
    read_presence,
    withdraw,
)

STANDING = Summary({"loss": 0.5}, 0)
LONG = 1e6


def state(value: float = 1.0) -> dict:
    weights = {"layer": torch.arange(50) * value}
    adam = {"layer": {"step": torch.tensor(3.0), "exp_avg": weights["layer"] / 3}}
    return {
        "weights": weights,
        "optimizers": {"model": {"hyper": {"lr": 0.1, "betas": (0.9, 0.99)}, "state": adam}},
    }


class Gathering:
    """A tournament of `num` trainers, of which some are there."""

    def __init__(self, directory: Path, num: int) -> None:
        self.directory, self.num = directory, num
        self.notes: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def join(self, index: int) -> FileTransport:
        made = FileTransport(self.directory, index, self.num, patience=2, note=self.notes.append)
        self._stack.callback(made.close, False)
        return made

    def record(self, trainer: int) -> Path:
        return presence_directory(self.directory) / f"{trainer}.json"

    def change(self, trainer: int, **changed) -> None:
        found = replace(read_presence(self.record(trainer)), **changed)
        self.record(trainer).write_text(json.dumps({**FORMAT.head(), **asdict(found)}))


@pytest.fixture
def gathering(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "GRACE_S", 0.0)
    monkeypatch.setattr(presence, "BEAT_S", LONG)  # records are touched by the tests alone
    with Gathering(tmp_path / "tournament", 3) as made:
        yield made


def end(waiting, looks: int = 50):
    """What a generator finds without anybody else doing anything."""
    try:
        for _ in range(looks):
            next(waiting)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def waits(waiting) -> bool:
    try:
        next(waiting)
    except StopIteration:
        return False
    return True


def dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_a_model_arrives_bit_by_bit_with_its_optimisers_state(gathering) -> None:
    one, other = gathering.join(0), gathering.join(1)
    one.offer(4, STANDING, state(1 / 3))
    offer = end(other.take(4, {1: 0, 0: 1}, LONG))
    assert (offer.trainer, offer.number) == (0, 4)
    assert state_digest(offer.state) == state_digest(state(1 / 3))
    assert end(other.summaries(4, [0], LONG)) == {0: STANDING}


def test_the_offer_of_the_very_round_is_waited_for(gathering) -> None:
    one, other = gathering.join(0), gathering.join(1)
    one.offer(1, STANDING, state())
    waiting = other.take(2, {1: 0}, LONG)
    assert waits(waiting) and waits(waiting)
    one.offer(2, STANDING, state(2))
    assert end(waiting).number == 2


def test_a_partner_that_is_slow_is_waited_for_once_and_its_newest_model_counts(gathering) -> None:
    one, other = gathering.join(0), gathering.join(1)
    one.offer(1, STANDING, state())
    assert end(other.take(2, {1: 0}, 0.0)).number == 1
    assert "trainer 0 did not come in time; its model of round 1 counts" in gathering.notes[0]
    assert end(other.take(3, {1: 0}, LONG)).number == 1  # nothing has moved, so nothing is expected
    one.offer(2, STANDING, state())
    assert waits(other.take(3, {1: 0}, LONG))


def test_who_is_far_behind_is_not_waited_for(gathering) -> None:
    late, other = gathering.join(0), gathering.join(1)
    late.offer(3, STANDING, state())
    assert end(other.take(20, {1: 0}, LONG)).number == 3
    assert waits(other.take(6, {1: 0}, LONG))


def test_who_comes_late_meets_the_newest_model_at_once(gathering) -> None:
    one = gathering.join(0)
    for number in range(1, 41):
        one.offer(number, STANDING, state(number))
        end(one.saved(number, True))
    late = gathering.join(1)
    assert late.participants(1) == [0, 1]
    assert end(late.take(1, {1: 0}, LONG)).number == 40
    assert end(one.take(41, {0: 1}, LONG)) is None


def test_who_never_came_takes_no_part(gathering) -> None:
    one = gathering.join(0)
    assert one.participants(1) == [0]
    announce(presence_directory(gathering.directory), [1, 2])  # they are being started
    assert one.participants(1) == [0, 1, 2]
    assert waits(one.take(1, {0: 1}, LONG))
    withdraw(presence_directory(gathering.directory), 1)
    assert one.participants(1) == [0, 2] and end(one.take(1, {0: 1}, LONG)) is None


def test_who_dies_is_not_waited_for_and_takes_no_part_any_more(gathering) -> None:
    one, other = gathering.join(0), gathering.join(1)
    other.offer(1, STANDING, state())
    waiting = one.take(2, {0: 1}, LONG)
    assert waits(waiting)
    gathering.change(1, pid=dead_process())
    assert end(waiting).number == 1
    assert one.participants(1) == [0, 1] and one.participants(2) == [0]


def test_who_has_only_just_gone_still_counts(gathering, monkeypatch) -> None:
    monkeypatch.setattr(presence, "GRACE_S", LONG)
    one = gathering.join(0)
    gathering.join(1).close(False)
    assert one.participants(1) == [0, 1]
    waiting = one.take(1, {0: 1}, LONG)
    assert waits(waiting)  # if all are stopped at once, nobody plays a round without the others
    monkeypatch.setattr(presence, "GRACE_S", 0.0)
    assert end(waiting) is None and one.participants(1) == [0]


def test_on_another_machine_a_record_that_is_touched_tells_who_lives(gathering) -> None:
    one = gathering.join(0)
    gathering.join(1)
    gathering.change(1, machine="elsewhere", pid=1, born=1)
    waiting = one.take(1, {0: 1}, LONG)
    assert one.participants(1) == [0, 1] and waits(waiting)
    now = gathering.record(0).stat().st_mtime
    os.utime(gathering.record(1), (now - 2 * SILENCE_S, now - 2 * SILENCE_S))
    assert one.participants(1) == [0] and end(waiting) is None


def test_the_last_model_of_one_that_has_finished_stays_in_the_tournament(gathering) -> None:
    one, other = gathering.join(0), gathering.join(1)
    other.offer(2, STANDING, state())
    other.close(True)
    assert one.participants(9) == [0, 1] and end(one.take(9, {0: 1}, LONG)).number == 2
    gathering.join(1).close(False)  # it was made longer, and stopped
    assert one.participants(9) == [0]


@pytest.mark.parametrize("name", ["round_00000001.pt", "round_00000001.json"])
def test_a_damaged_model_is_left_out_and_told(gathering, name) -> None:
    one, other = gathering.join(0), gathering.join(1)
    other.offer(1, STANDING, state())
    path = gathering.directory / "offers" / "1" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :: 7] = b"\xff" * len(content[len(content) // 2 :: 7])
    path.write_bytes(content)
    if name.endswith(".pt"):
        assert end(one.take(1, {0: 1}, LONG)) is None
    else:
        assert end(one.summaries(1, [1], LONG)) == {}
    assert any("trainer 1" in note for note in gathering.notes)


def test_a_full_disk_costs_an_offer_and_blocks_nobody(gathering, monkeypatch) -> None:
    one, other = gathering.join(0), gathering.join(1)
    other.offer(1, STANDING, state())
    write = files.write_state
    monkeypatch.setattr(files, "write_state", lambda path, data: write(Path("/dev/full"), data))
    other.offer(2, STANDING, state())
    assert "could not be offered to the others: [Errno 28]" in gathering.notes[0]
    assert end(one.take(2, {0: 1}, LONG)).number == 1


def offered(gathering: Gathering, trainer: int) -> list[int]:
    folder = gathering.directory / "offers" / str(trainer)
    assert {p.stem for p in folder.glob("*.pt")} == {p.stem for p in folder.glob("*.json")}
    return sorted(int(path.stem.partition("_")[2]) for path in folder.glob("*.json"))


def test_a_model_stays_until_all_have_a_checkpoint_after_its_round(gathering) -> None:
    one, other, third = (gathering.join(k) for k in range(3))
    for number in (1, 2, 3):
        one.offer(number, STANDING, state())
    assert offered(gathering, 0) == [1, 2, 3]  # whoever is killed now plays these rounds again
    end(other.saved(2, True))
    end(third.saved(3, False))
    one.offer(4, STANDING, state())
    assert offered(gathering, 0) == [1, 2, 3, 4]
    end(third.saved(1, True))
    one.offer(5, STANDING, state())
    assert offered(gathering, 0) == [2, 3, 4, 5]
    end(third.agree(0))  # it was killed, and had no checkpoint left
    for number in range(6, 30):
        one.offer(number, STANDING, state())
    assert offered(gathering, 0) == list(range(24, 30))  # the disk is not filled for one that is slow


def test_what_a_killed_writer_left_is_never_read_and_removed(gathering) -> None:
    folder = gathering.directory / "offers" / "0"
    folder.mkdir(parents=True)
    (folder / "round_00000001.pt.77.tmp").write_bytes(b"half")
    (folder / "round_00000002.pt").write_bytes(b"without its standing")
    one, other = gathering.join(0), gathering.join(1)
    assert waits(other.take(2, {1: 0}, LONG))
    assert [p.name for p in folder.iterdir()] == ["round_00000002.pt"]
    one.offer(2, STANDING, state())
    assert end(other.take(2, {1: 0}, LONG)).number == 2
