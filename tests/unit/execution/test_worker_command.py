"""Which options of a Celery worker Merlin reads itself."""

from __future__ import annotations

import pytest

from merlin.execution.distributed.worker_command import WorkerOptions, plain_options

PLAIN = "-A merlin worker -n simw.%h -Q [merlin]_a@1,[merlin]_b@1 --pool threads --concurrency 4 -l INFO"


def test_the_options_that_merlin_gives_are_read_here() -> None:
    assert plain_options(PLAIN.split(), {"PATH": "/bin"}) == WorkerOptions(
        name="simw.%h", queues="[merlin]_a@1,[merlin]_b@1", concurrency=4, level="INFO"
    )


@pytest.mark.parametrize(
    "line",
    [
        PLAIN + " -E",
        PLAIN + " --prefetch-multiplier 1",
        PLAIN.replace("--concurrency 4", "--concurrency auto"),
        PLAIN.replace("--concurrency 4", "--concurrency 0"),
        PLAIN.replace("--concurrency 4", "-c4"),
        PLAIN.replace("threads", "solo"),
        PLAIN.replace("-l INFO", "-l loud"),
        PLAIN.replace("-l INFO", "-l"),
        PLAIN + " -l DEBUG",
        PLAIN.replace("worker", "inspect"),
        "--help",
        "",
    ],
)
def test_all_others_are_celerys(line: str) -> None:
    assert plain_options(line.split(), {}) is None


@pytest.mark.parametrize("name", ["CELERY_WORKER_LOGLEVEL", "NO_COLOR", "CONFIG_MODULE"])
def test_variables_that_celery_reads_are_celerys(name: str) -> None:
    assert plain_options(PLAIN.split(), {name: "x"}) is None
