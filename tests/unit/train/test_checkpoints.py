"""Checkpoints on the disk: what comes back, what is refused, and those of earlier versions."""

from __future__ import annotations

import io
import os
import resource
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from rank_processes import FORMAT, read_distributed, run_on_ranks, write_distributed
from surrogate_data import make_surrogate_data
from train_run import StopAt, last_checkpoint, prepare_run, state_digest, train_run

from merlin.errors import CheckpointError
from merlin.shards.format.digest import digest_bytes
from merlin.train.checkpoint import (
    Checkpoints,
    best_checkpoint,
    read_best,
    read_checkpoint,
)
from merlin.train.parallel.mesh import Ranks
from merlin.train.sharded_state import read_sharded, write_sharded
from merlin.train.state_file import read_state, write_state

STATE = {
    "step": 7,
    "model": {"weight": torch.arange(6.0).reshape(2, 3).t(), "none": torch.zeros(0, 4), "count": torch.tensor(3)},
    "optimizer": {"state": {0: {"exp_avg": torch.ones(2, dtype=torch.float16)}}, "betas": (0.9, 0.999)},
    "random": [{"python": (3, (1, 2**63 - 1), None), "torch": torch.get_rng_state()}],
    "nothing": None,
}  # fmt: skip


def save(directory: Path, **more: object) -> Checkpoints:
    checkpoints = Checkpoints(directory, 2)
    assert checkpoints.save({**STATE, **more}, 7)
    return checkpoints


def test_a_state_comes_back_as_it_was(tmp_path) -> None:
    found = save(tmp_path).load(7)
    assert (found.pop("format"), found.pop("version")) == ("merlin-checkpoint", 2)
    assert state_digest(found) == state_digest(STATE)
    assert type(found["optimizer"]["betas"]) is tuple and list(found["optimizer"]["state"]) == [0]


def test_a_state_dict_of_torch_keeps_the_versions_of_its_modules(tmp_path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    save(tmp_path, model=model.state_dict())
    found = read_checkpoint(last_checkpoint(tmp_path))["model"]
    assert found._metadata == model.state_dict()._metadata
    model.load_state_dict(found)


@pytest.mark.parametrize("name", ["state.pt", "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["a bit", "the end", "all"])
def test_damage_is_found_in_every_file(tmp_path, name, damage) -> None:
    checkpoints = save(tmp_path)
    path = tmp_path / "step_00000007.1" / name
    content = bytearray(path.read_bytes())
    middle = content.index(b"exp_avg") if name == "state.pt" else len(content) // 2
    content[middle] ^= 1
    if damage == "all":
        path.unlink()
    else:
        path.write_bytes(content if damage == "a bit" else content[:-200])
    with pytest.raises(CheckpointError, match=r"step_00000007.* is damaged|there is no .*step_00000007"):
        checkpoints.load(7)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def test_a_checkpoint_that_is_a_program_is_refused_and_not_run(tmp_path) -> None:
    checkpoints = save(tmp_path)
    directory, made = tmp_path / "step_00000007.1", io.BytesIO()
    torch.save([Bomb(tmp_path / "called"), "x" * 100_000], made)
    head = read_state(directory / "state.pt")
    (directory / "__0_0.distcp").write_bytes(made.getvalue())
    digest = digest_bytes(made.getvalue())
    parts = [(*part[:-2], 0, len(made.getvalue())) for part in head["parts"]]
    write_state(directory / "state.pt", {**head, "files": {"__0_0.distcp": digest}, "parts": parts})
    with pytest.raises(CheckpointError, match="nothing of it was run"):
        checkpoints.load(7)
    assert not (tmp_path / "called").exists()


def test_a_checkpoint_names_no_files_outside_of_its_directory(tmp_path) -> None:
    checkpoints = save(tmp_path)
    path = tmp_path / "step_00000007.1" / "state.pt"
    head = read_state(path)
    (tmp_path / "step_00000007.1" / "__0_0.distcp").rename(tmp_path / "elsewhere")
    outside = [(*part[:5], "../elsewhere", *part[6:]) for part in head["parts"]]
    for files in ({"../elsewhere": head["files"]["__0_0.distcp"]}, {}):
        write_state(path, {**head, "files": files, "parts": outside})
        with pytest.raises(CheckpointError, match="is damaged"):
            checkpoints.load(7)


@contextmanager
def files_up_to(size: int):
    """No file of this process may become larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_best_one_that_cannot_be_kept_leaves_the_checkpoint(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    notes: list[str] = []
    checkpoints = Checkpoints(tmp_path, 2, notes.append)
    assert checkpoints.save(STATE, 7, best=True)
    monkeypatch.setattr("merlin.train.checkpoint.link_or_copy", full)
    assert not checkpoints.save(STATE, 9, best=True)
    what = "the checkpoint of step 9 is there, and could not be kept as the best: No space left on device"
    assert notes == [f"{what}; the best one of before stays"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.1",
        "step_00000007.1",
        "step_00000009.1",
    ]


def test_tensors_that_cannot_be_written_cost_a_checkpoint_and_a_note(tmp_path) -> None:
    notes: list[str] = []
    checkpoints = Checkpoints(tmp_path, 2, notes.append)
    assert checkpoints.save(STATE, 7)
    with files_up_to(1 << 16):
        assert not checkpoints.save({**STATE, "large": torch.rand(1 << 18)}, 9)
    assert notes == ["the checkpoint of step 9 could not be written: File too large; the one of step 7 stays"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000007.1"]


def test_a_writer_that_was_killed_leaves_nothing_that_is_read_or_stays(tmp_path) -> None:
    checkpoints = save(tmp_path)
    (tmp_path / "step_00000009.tmp").mkdir()
    write_sharded(tmp_path / "step_00000009.tmp", {"format": "merlin-checkpoint", "version": 2}, {}, Ranks())
    assert checkpoints.steps() == [7] and checkpoints.newest()["step"] == 7
    assert checkpoints.save(STATE, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000007.1", "step_00000008.1"]


def test_a_checkpoint_has_its_name_once_its_files_are_flushed(tmp_path, monkeypatch) -> None:
    flushed: set[int] = set()
    flush, rename = os.fsync, Path.rename

    def note(descriptor: int) -> None:
        flush(descriptor)
        flushed.add(os.fstat(descriptor).st_ino)

    def require_flushed(path: Path, target: Path) -> Path:
        assert {entry.stat().st_ino for entry in (path, *path.iterdir())} <= flushed
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", require_flushed)
    assert Checkpoints(tmp_path, 2).save(STATE, 7, best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.1", "step_00000007.1"]


def test_a_state_that_two_ranks_wrote_is_read_by_any_number_of_them(tmp_path) -> None:
    run_on_ranks(2, write_distributed, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"state.pt", "__0_0.distcp", "__1_0.distcp"}
    run_on_ranks(3, read_distributed, tmp_path)
    state = read_sharded(tmp_path, FORMAT)
    assert torch.equal(state["model"]["split"], torch.arange(21.0).reshape(7, 3))


def test_the_best_checkpoint_can_be_read_while_its_trainer_goes_on(tmp_path) -> None:
    over = threading.Event()

    def go_on() -> None:
        checkpoints, step = Checkpoints(tmp_path, keep=1), 0
        while not over.is_set():
            step = step % 7 + 1
            state = {"number": step, "weights": torch.full((50_000,), float(step))}
            assert checkpoints.save(state, step, best=True)

    save(tmp_path, number=0, weights=torch.zeros(50_000))
    Checkpoints(tmp_path, keep=1).mark_best(7)
    trainer = threading.Thread(target=go_on)
    trainer.start()
    try:
        numbers = set()
        while len(numbers) < 20:
            state = read_best(tmp_path)
            assert state is not None
            assert (state["weights"] == state["number"]).all()
            numbers.add((state["number"], len(numbers)))
    finally:
        over.set()
        trainer.join()


def number(state) -> int:
    assert state is not None
    return int(state["number"])


def test_the_best_one_stays_when_the_run_goes_back_and_another_way(tmp_path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, best in [(6, True), (8, False), (10, True), (9, False)]:
        assert checkpoints.save({"number": step}, step, best=best)
    assert checkpoints.steps() == [8, 9]
    assert number(checkpoints.newest()) == 9
    assert checkpoints.save({"number": 99}, 10)  # the same step as the best one, with other weights
    assert (number(checkpoints.newest()), number(read_best(tmp_path))) == (99, 10)


def test_the_best_one_is_used_when_no_other_can_be_read(tmp_path) -> None:
    checkpoints = save(tmp_path, number=7)
    checkpoints.mark_best(7)
    for file in (tmp_path / "step_00000007.1").iterdir():
        file.unlink()
    assert number(checkpoints.newest()) == 7


@pytest.mark.parametrize("name", ["last.pt", "best.pt"])
def test_a_lone_file_of_version_1_is_used(tmp_path, name) -> None:
    write_state(tmp_path / name, {**STATE, "format": "merlin-checkpoint", "version": 1})
    found = Checkpoints(tmp_path, 2).newest()
    assert found is not None and found["step"] == 7


def test_a_copy_and_a_file_system_without_links_are_as_good(tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setattr("os.symlink", refuse)
    checkpoints = Checkpoints(tmp_path / "a", keep=1)
    for step in (1, 2, 3):
        assert checkpoints.save({"number": step}, step, best=step == 2)
    assert (checkpoints.steps(), number(read_best(tmp_path / "a"))) == ([3], 2)


def test_keys_that_look_alike_and_tensors_of_other_layouts_come_back(tmp_path) -> None:
    state = {
        "step": 1, "twins": {1: torch.ones(1), "1": torch.zeros(1)}, "a/b": torch.ones(2), "a": {"b": torch.zeros(2)},
        "sparse": torch.eye(3).to_sparse(),
    }  # fmt: skip
    assert Checkpoints(tmp_path, 1).save(state, 1)
    found = read_checkpoint(last_checkpoint(tmp_path))
    assert (found["twins"][1], found["twins"]["1"]) == (torch.ones(1), torch.zeros(1))
    assert torch.equal(found["a/b"], torch.ones(2)) and torch.equal(found["a"]["b"], torch.zeros(2))
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))


@pytest.mark.parametrize("change", [{2: [3, 3]}, {3: [1, 0]}, {2: [4 * 10**9, 3]}])
def test_parts_that_do_not_make_a_tensor_are_damage(tmp_path, change) -> None:
    assert Checkpoints(tmp_path, 1).save({"step": 1, "weights": torch.ones(2, 3)}, 1)
    path = last_checkpoint(tmp_path) / "state.pt"
    head = read_state(path)
    (part,) = head["parts"]
    write_state(path, {**head, "parts": [tuple(change.get(i, item) for i, item in enumerate(part))]})
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(path.parent)


@pytest.mark.parametrize("held", [[1, 2, 3], torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float16)])
def test_a_part_that_is_something_else_than_its_checkpoint_says_is_damage(tmp_path, held) -> None:
    assert Checkpoints(tmp_path, 1).save({"step": 1, "weights": torch.ones(2, 3)}, 1)
    path = last_checkpoint(tmp_path)
    torch.save(held, path / "__0_0.distcp")
    content = (path / "__0_0.distcp").read_bytes()
    head = read_state(path / "state.pt")
    (part,) = head["parts"]
    changed = {"parts": [(*part[:-2], 0, len(content))], "files": {"__0_0.distcp": digest_bytes(content)}}
    write_state(path / "state.pt", {**head, **changed})
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(path)


def as_version_1(directory: Path) -> None:
    """Let the checkpoints of a trainer be what earlier versions wrote: files, and hard links."""
    steps = Checkpoints(directory, 3).steps()
    for path in sorted(directory.glob("step_*")):
        write_state(directory / f"{path.stem}.pt", {**read_checkpoint(path), "version": 1})
    best = best_checkpoint(directory)
    assert best is not None
    write_state(directory / "best.pt", {**read_checkpoint(best), "version": 1})
    directory.joinpath("last.pt").hardlink_to(directory / f"step_{steps[-1]:08d}.pt")
    for path in [path for path in directory.iterdir() if path.is_dir()]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def test_a_run_goes_on_from_checkpoints_of_version_1_bit_by_bit(tmp_path) -> None:
    data = make_surrogate_data(tmp_path / "data")
    unbroken, ending, _ = train_run(prepare_run(data, tmp_path / "unbroken"))
    prepared = prepare_run(data, tmp_path / "broken")
    run, _, _ = train_run(prepared, stop=StopAt(23))
    directory = run.trainer(0).checkpoints
    as_version_1(directory)
    assert Checkpoints(directory, 3).steps() == [10, 20, 23]
    assert read_checkpoint(best_checkpoint(directory))["step"] in (10, 20)
    run, _, recorder = train_run(prepared, run=run)
    assert "resumed at step 23 of 40" in recorder.notes
    one, two = (read_checkpoint(last_checkpoint(r.trainer(0).checkpoints)) for r in (run, unbroken))
    assert state_digest(one) == state_digest(two)
    assert read_checkpoint(best_checkpoint(directory))["step"] == ending.progress.best_step
    assert not (directory / "last.pt").exists()
