"""The metrics of a trainer for TensorBoard, if it is installed."""

from __future__ import annotations

from typing import Any

from merlin.train.event_log import EventLog
from merlin.train.events import Event


class TensorBoardLog(EventLog):
    """The values of events as scalars "<kind>/<name>"."""

    name = "tensorboard"
    _writer: Any = None

    def _open(self, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._writer = SummaryWriter(str(self._path), purge_step=step + 1 if step else None)

    def _write(self, event: Event) -> None:
        if self._writer is not None:
            for name, value in event.values.items():
                self._writer.add_scalar(f"{event.kind}/{name}", value, event.step)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
