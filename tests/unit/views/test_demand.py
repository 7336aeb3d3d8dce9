"""Waiting for the end of the work on some queues; what is left of it is asked of real studies elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from merlin.config.model import Config
from merlin.errors import ExecutionError
from merlin.execution.distributed.registry import StudyInfo
from merlin.views import demand


class _Registry:
    """Two studies, of which one is over at the third question; the second question has no answer."""

    def __init__(self) -> None:
        self.num_asked = 0

    def studies(self) -> list[StudyInfo]:
        return [
            StudyInfo(
                study_id=id, name=id, workspace="/no", plan="p", queues=["q"], session="s", published=1.0
            )
            for id in ("a", "b")
        ]

    def workers(self) -> list[object]:
        return []

    def study_ids(self) -> set[str]:
        self.num_asked += 1
        if self.num_asked == 2:
            raise ExecutionError("no answer")
        return {"a", "b", "other"} if self.num_asked < 3 else {"b", "other"}


def test_waiting_ends_with_one_of_the_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _Registry()
    monkeypatch.setattr(demand, "open_registry", lambda config: registry)
    config = Config(broker=None, backend=None, key_path=Path("merlin.key"), origin="test")
    followed = demand.QueueDemand(config, ["q"])
    followed.wait(0.001)  # nothing was looked at yet: it just waits
    assert registry.num_asked == 0
    assert followed.look().num_open == 2
    followed.wait(1000.0)
    assert registry.num_asked == 3
