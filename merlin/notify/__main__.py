"""The program that sends one notice: a separate process, so that a hanging service cannot hold up a study.

It reads the rule and the notice from standard input, and writes to standard output why sending failed.
"""

from __future__ import annotations

import os
import sys

from merlin.base.records import as_kind, parsed
from merlin.errors import MerlinError
from merlin.notify.deliver import deliver
from merlin.notify.notice import Notice
from merlin.plan.notify_rule import NotifyRule


def main() -> int:
    given = parsed(sys.stdin.buffer.read())
    try:
        deliver(as_kind(given["rule"], NotifyRule), as_kind(given["notice"], Notice), os.environ)
    except MerlinError as error:
        sys.stdout.write(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
