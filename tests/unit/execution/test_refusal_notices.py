"""People are told that a batch scheduler refuses worker jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from merlin.execution.refusal_notices import RefusalNotices
from merlin.spec.load import load_spec

SPEC = """\
description: {name: demo, description: d}
study: [{name: sim, run: {cmd: "true"}}]
notify:
- {when: refused, cmd: 'echo "$MERLIN_EVENT $MERLIN_STUDY: $MERLIN_REASON" >> $(SPECROOT)/told'}
- {when: [end, stall, failures], cmd: 'echo wrong >> $(SPECROOT)/told'}
- {when: refused, webhook: $MERLIN_NO_SUCH_HOOK}
"""


def test_a_refusal_is_told_once_and_with_its_reason(tmp_path: Path) -> None:
    path, said = tmp_path / "demo.yaml", list[str]()
    path.write_text(SPEC)
    notices = RefusalNotices(path, load_spec(path).document, said.append)
    notices.look("")
    for number in (17, 18):
        notices.look(f"job {number}: QOSMaxNodePerUserLimit")
    notices.wait()
    assert (tmp_path / "told").read_text() == "refused demo: job 17: QOSMaxNodePerUserLimit\n"
    assert ["MERLIN_NO_SUCH_HOOK is not set" in text for text in said] == [True]


def test_without_rules_nothing_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC.partition("notify:")[0])
    notices = RefusalNotices(path, load_spec(path).document, pytest.fail)
    notices.look("no")
    notices.wait()
