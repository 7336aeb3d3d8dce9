"""`make bench`: every row of docs/benchmarks.md, or those named on the command line.

make bench ROWS="plan status --rounds 3 --quick"

Each row is measured in a process of its own, because a command's peak memory is never told as less than that of the
process that started it. It is written as soon as it is measured, so that a run cut off keeps what it has.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import tempfile
from pathlib import Path

import report

TOPICS: dict[str, dict[str, tuple[str, int]]] = {  # "module:function" in this folder, and the size of the job
    "Shells and functions": {
        "null_shell": ("throughput:null_shell", 10_000),
        "json_to_shards": ("throughput:json_to_shards", 10_000),
        "collect_again": ("collecting:collect_again", 10_000),
        "null_function": ("throughput:null_function", 3_000_000),
        "function_processes": ("starting:function_processes", 16),
        "ledger_of_shell": ("throughput:ledger_of_shell", 10_000),
        "first_sample": ("throughput:first_sample", 1_000_000),
    },
    "Plans, status, failures": {
        "plan": ("scale:plan", 100_000_000),
        "status": ("scale:status", 1_000_000),
        "status_large": ("scale:status_large", 10_000_000),
        "restart": ("scale:restart", 1_000_000),
        "failures": ("failing:failures", 1_000_000),
        "timeline": ("failing:timeline", 1_000_000),
    },
    "Readers and the dashboard": {
        "hostile_readers": ("hostile:hostile_readers", 200_000),
        "hostile_readers_apart": ("hostile:hostile_readers_apart", 10_000),
        "following": ("following:following", 1_000_000),
        "dashboard": ("dashboards:dashboard", 1_000_000),
    },
    "Updates": {
        "update_plan": ("updating:update_plan", 1_000_000),
        "update_snakemake": ("updating:update_snakemake", 10_000),
    },
    "Workers on Celery and Redis": {
        "celery_drain": ("distributed:drain", 10_000),
        "celery_drain_large": ("distributed:drain_large", 30_000),
        "celery_function": ("distributed:null_function", 10_000_000),
        "celery_publish": ("distributed:publish", 100_000_000),
        "celery_first_sample": ("distributed:first_sample", 1_000_000),
        "celery_recovery": ("distributed:recovery", 500),
        "redis_load": ("distributed:redis_load", 10_000),
        "many_workers": ("many_workers:rows", 10_000),
    },
    "Jobs of a batch scheduler": {
        "allocations": ("allocations:allocations", 10_000),
        "allocations_walltime": ("allocations:allocations_walltime", 1_000),
        "allocations_compared": ("allocations:allocations_compared", 600),
    },
    "Shards": {
        "shard_writing": ("data:shard_writing", 4_000),
        "verify": ("data:verify", 40_000),
    },
    "Loading": {
        "shuffled_batches": ("reading:shuffled_batches", 20_000),
        "compressed_batches": ("reading:compressed_batches", 20_000),
        "torch_batches": ("loading:torch_batches", 20_000),
    },
    "Training": {
        "training_loop": ("training:training_rows", 20_000),
        "gpu_loading": ("gpu:gpu_loading", 20_000),
        "gpu_training": ("gpu:gpu_training", 10_000),
    },
    "The ICF surrogate": {
        "icf_surrogate": ("icf_surrogate:surrogate", 10_000),
        "icf_posterior": ("icf_posterior:posterior", 10_000),
        "icf_surrogate_ablation": ("icf_surrogate:ablation", 4000),
    },
    "Tournaments": {
        "tournament_quality": ("tournament:quality", 2048),
        "tournament_data_rich": ("tournament_data_rich:data_rich", 205_000),
        "tournament_images": ("tournament_data_rich:images", 105_000),
        "tournament_defaults": ("tournament_data_rich:defaults", 205_000),
        "tournament_link": ("tournament_link:link", 205_000),
        "tournament_overhead": ("tournament:overhead", 20_000),
        "shares_in_memory": ("share_memory:shares_in_memory", 8_000),
        "tournament_kill": ("tournament:kill", 20_000),
    },
}
ROWS = {name: row for rows in TOPICS.values() for name, row in rows.items()}


def measure(name: str, folder: Path, rounds: int, quick: bool) -> None:
    """Measure one row, show it and, unless quick, write it; what this machine cannot measure gives no rows."""
    place, num = ROWS[name]
    module, function = place.split(":")
    row = getattr(importlib.import_module(module), function)
    found: list[report.Row] = row(folder, rounds, num // 10 if quick else num)
    for r in found:
        print(f"{r.what}: {r.ours}  {r.other}  {r.ratio}  (floor {r.floor})  {r.memory}", flush=True)
    if found and not quick:
        report.save(name, found, rounds, TOPICS)


def main() -> None:
    """Exits 1 if a row could not be measured; the others are, all the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all when none is named"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, for trying the harness")
    args = parser.parse_args()
    unknown = set(args.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    failed = []
    with tempfile.TemporaryDirectory(prefix="merlin-bench-") as tmp:
        for name in args.rows or ROWS:
            folder = Path(tmp) / name
            folder.mkdir()
            process = multiprocessing.get_context("spawn").Process(
                target=measure, args=(name, folder, args.rounds, args.quick)
            )
            process.start()
            process.join()
            if process.exitcode:
                failed.append(name)
    if not args.quick:
        print(f"written to {report.DOCS}")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
