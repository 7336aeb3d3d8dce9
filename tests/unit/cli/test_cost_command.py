from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from merlin.cli.commands.cost import cost
from merlin.errors import UsageError


@pytest.mark.parametrize("rate", ["nan", "inf"])
def test_a_price_that_is_no_number_is_refused(tmp_path: Path, rate: str) -> None:
    with pytest.raises(UsageError, match="price of a core-hour"):
        CliRunner().invoke(cost, [str(tmp_path), "--rate", rate], catch_exceptions=False)
