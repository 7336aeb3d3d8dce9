from __future__ import annotations

from pathlib import Path

import pytest
from status_study import OK, add, chunk, make_workspace

from merlin.cli.study_status import show_status


def test_status_names_the_place_of_damage_in_a_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_workspace(tmp_path / "study_20260101-000000")
    for lo in (0, 5, 10):
        add(study, chunk("sim/P.1", lo, [OK] * 5))
    add(study, chunk("post", 0, [OK] * 5), chunk("post", 5, [OK] * 5), worker="w1")
    segment = max(study.ledger_dir.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    show_status(study, as_json=False, dump=None, cb_help=True)
    shown = capsys.readouterr().out
    assert f"the ledger is damaged: {segment}: a damaged record" in shown
