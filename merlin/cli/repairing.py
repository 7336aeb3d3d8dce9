"""Says what the repair of a data set did."""

from __future__ import annotations

from typing import Any

from merlin.base.ranges import format_ranges, to_ranges
from merlin.base.text import count
from merlin.execution.repair import RepairResult
from merlin.shards.proving.verify import VerifyReport


def _listed(samples: Any) -> str:
    """ "3 samples (0-2)"."""
    return f"{count(len(samples), 'sample')} ({format_ranges(to_ranges(samples))})"


def show_repair(report: VerifyReport, done: RepairResult) -> None:
    """Print what a repair did, for people."""
    if done.was_interrupted:
        print(f"{report.path}: the repair was interrupted; run it again to go on")
        return
    print(f"{report.path}: {'repaired' if report.ok else 'STILL DAMAGED'}")
    for samples, what in (
        (done.ran_again, "ran again"),
        (done.collected_again, "collected again from the files that they had left"),
        (done.failed, "ran again and did not end ok; merlin failures says why"),
    ):
        if len(samples):
            print(f"  {_listed(samples)} {what}")
    if done.repacked:
        print(f"  packed again: {', '.join(sorted(done.repacked))}")
    if done.rebuilt:
        print(f"  rebuilt: {', '.join(sorted(done.rebuilt))}")
    if len(done.changed):
        print(
            f"  WARNING: {_listed(done.changed)} gave other values than before: "
            "their simulation is not deterministic, or what it reads or runs has changed"
        )
    if not done.digest_before:
        print(f"  content {done.digest_after}")
    elif done.digest_before == done.digest_after:
        print(f"  content as before: {done.digest_after}")
    else:
        print(f"  content has changed: {done.digest_before}\n                  now: {done.digest_after}")
