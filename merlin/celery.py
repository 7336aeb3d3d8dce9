"""What `celery -A merlin worker …` loads: the application of a worker, as upstream's users type it.

Merlin starts workers with `python -m merlin.celery -A merlin worker …`.
"""

from __future__ import annotations

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    """`app`, made when Celery asks for it; nothing happens at import."""
    if name not in ("app", "celery"):
        raise AttributeError(name)
    from merlin.errors import MerlinError
    from merlin.execution.distributed import app

    try:
        return app.app
    except MerlinError as error:  # no configuration, a key that others can read
        raise SystemExit(f"merlin: error: {error}") from None


if __name__ == "__main__":
    from merlin.execution.distributed.worker_command import main

    main(sys.argv[1:])
